//! Five programs as they are written over std: none flushes, none knows whose stream it has.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;

use super::{TcpListener, TcpStream, listen};

#[test]
fn echo_server_with_a_thread_for_each_client() -> io::Result<()> {
    const CLIENTS: usize = 3;

    fn serve(mut stream: TcpStream) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let bytes = stream.read(&mut buffer)?;
            if bytes == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..bytes])?;
        }
    }

    let (listener, address) = listen()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            thread::spawn(move || -> io::Result<Vec<u8>> {
                let mut stream = TcpStream::connect(address)?;
                stream.write_all(&vec![number as u8; 30_000])?;
                stream.shutdown(Shutdown::Write)?;
                let mut echo = Vec::new();
                stream.read_to_end(&mut echo)?;
                Ok(echo)
            })
        })
        .collect();
    for stream in listener.incoming().take(CLIENTS) {
        let stream = stream?;
        thread::spawn(move || serve(stream));
    }
    for (number, client) in clients.into_iter().enumerate() {
        assert_eq!(client.join().unwrap()?, vec![number as u8; 30_000]);
    }
    Ok(())
}

#[test]
fn lines_are_answered_one_by_one() -> io::Result<()> {
    fn serve(listener: &TcpListener) -> io::Result<()> {
        let (stream, _) = listener.accept()?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line)? > 0 {
            stream.get_mut().write_all(line.to_uppercase().as_bytes())?;
            line.clear();
        }
        writeln!(stream.get_mut(), "bye")?;
        writeln!(stream.get_mut(), "for now")
    }

    let (listener, address) = listen()?;
    let server = thread::spawn(move || serve(&listener));
    let mut stream = BufReader::new(TcpStream::connect(address)?);
    for word in ["one", "two", "three"] {
        writeln!(stream.get_mut(), "{word}")?;
        let mut answer = String::new();
        stream.read_line(&mut answer)?;
        assert_eq!(answer.trim_end(), word.to_uppercase());
    }
    stream.get_mut().shutdown(Shutdown::Write)?;
    let rest: Vec<String> = stream.lines().collect::<io::Result<_>>()?;
    assert_eq!(rest, ["bye", "for now"]);
    server.join().unwrap()
}

#[test]
fn http_get_returns_the_page() -> io::Result<()> {
    fn serve(listener: &TcpListener) -> io::Result<()> {
        let mut stream = BufReader::new(listener.accept()?.0);
        let mut request = String::new();
        stream.read_line(&mut request)?;
        for header in stream.by_ref().lines() {
            if header?.is_empty() {
                break;
            }
        }
        let page = format!("you asked for {}\n", request.split(' ').nth(1).unwrap_or("/"));
        let stream = stream.get_mut();
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len())
    }

    let (listener, address) = listen()?;
    let server = thread::spawn(move || serve(&listener));
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /index.html HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK"), "{head}");
    assert_eq!(page, "you asked for /index.html\n");
    server.join().unwrap()
}

#[test]
fn a_file_is_copied() -> io::Result<()> {
    fn receive(listener: &TcpListener) -> io::Result<File> {
        let (mut stream, _) = listener.accept()?;
        let mut file = tempfile::tempfile()?;
        io::copy(&mut stream, &mut file)?;
        file.rewind()?;
        Ok(file)
    }

    let content: Vec<u8> = (0..3_000_001_u32).map(|number| (number / 7) as u8).collect();
    let mut original = tempfile::tempfile()?;
    original.write_all(&content)?;
    original.rewind()?;
    let (listener, address) = listen()?;
    let receiver = thread::spawn(move || receive(&listener));
    let mut stream = TcpStream::connect(address)?;
    assert_eq!(io::copy(&mut original, &mut stream)?, content.len() as u64);
    drop(stream);
    let mut copy = Vec::new();
    receiver.join().unwrap()?.read_to_end(&mut copy)?;
    assert!(copy == content, "{} bytes, not {}", copy.len(), content.len());
    Ok(())
}

#[test]
fn requests_with_a_length_in_front_are_answered() -> io::Result<()> {
    fn send(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
        stream.write_all(&(message.len() as u32).to_be_bytes())?;
        stream.write_all(message)
    }

    fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut message = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut message)?;
        Ok(message)
    }

    fn serve(stream: &mut TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let mut request = receive(stream)?;
            request.reverse();
            send(stream, &request)?;
        }
    }

    let (listener, address) = listen()?;
    let server = thread::spawn(move || serve(&mut listener.accept()?.0));
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    for bytes in [0, 1, 5, 4096, 100_000] {
        let request: Vec<u8> = (0..bytes).map(|number| number as u8).collect();
        send(&mut stream, &request)?;
        assert!(receive(&mut stream)?.into_iter().rev().eq(request), "{bytes}");
    }
    drop(stream);
    assert_eq!(server.join().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    Ok(())
}

#[test]
fn errors_have_the_kinds_of_std() -> io::Result<()> {
    fn connect(address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn accept(listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.set_nonblocking(true)?;
        Ok(listener.accept()?.1)
    }

    let (listener, address) = listen()?;
    assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let mut stream = connect(address)?;
    stream.shutdown(Shutdown::Both)?;
    assert_eq!(stream.read(&mut [0])?, 0);
    assert_eq!(stream.write(&[0]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    drop(listener);
    assert_eq!(connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    Ok(())
}
