//! Five programs as they are written over tokio: none flushes, none knows whose stream it has.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::io::{copy_bidirectional, split};
use tokio::time::sleep;

use super::{TcpListener, TcpStream, listen};

#[tokio::test]
async fn echo_server_with_a_task_for_each_client() -> io::Result<()> {
    const CLIENTS: usize = 3;

    async fn serve(mut stream: TcpStream) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let bytes = stream.read(&mut buffer).await?;
            if bytes == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..bytes]).await?;
        }
    }

    async fn echo_of(address: SocketAddr, number: u8) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&[number; 30_000]).await?;
        stream.shutdown().await?;
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).await?;
        Ok(echo)
    }

    let (listener, address) = listen().await?;
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(echo_of(address, number as u8))).collect();
    for _ in 0..CLIENTS {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(stream));
    }
    for (number, client) in clients.into_iter().enumerate() {
        assert_eq!(client.await.unwrap()?, [number as u8; 30_000]);
    }
    Ok(())
}

#[tokio::test]
async fn lines_are_answered_one_by_one() -> io::Result<()> {
    async fn serve(listener: TcpListener) -> io::Result<()> {
        let (stream, _) = listener.accept().await?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 0 {
            stream.write_all(line.to_uppercase().as_bytes()).await?;
            line.clear();
        }
        stream.write_all(b"bye\nfor now\n").await
    }

    let (listener, address) = listen().await?;
    let server = tokio::spawn(serve(listener));
    let (reader, mut writer) = split(TcpStream::connect(address).await?);
    let mut lines = BufReader::new(reader).lines();
    for word in ["one", "two", "three"] {
        writer.write_all(format!("{word}\n").as_bytes()).await?;
        assert_eq!(lines.next_line().await?, Some(word.to_uppercase()));
    }
    writer.shutdown().await?;
    let mut rest = Vec::new();
    while let Some(line) = lines.next_line().await? {
        rest.push(line);
    }
    assert_eq!(rest, ["bye", "for now"]);
    server.await.unwrap()
}

#[tokio::test]
async fn a_proxy_forwards_both_directions() -> io::Result<()> {
    const BYTES: usize = 3_000_001;

    async fn forward(listener: TcpListener, onwards: SocketAddr) -> io::Result<(u64, u64)> {
        let (mut client, _) = listener.accept().await?;
        let mut server = TcpStream::connect(onwards).await?;
        copy_bidirectional(&mut client, &mut server).await
    }

    async fn serve(listener: TcpListener) -> io::Result<()> {
        let (mut reader, mut writer) = listener.accept().await?.0.into_split();
        tokio::io::copy(&mut reader, &mut writer).await?;
        writer.write_all(b"the end").await?;
        writer.shutdown().await
    }

    async fn send(mut stream: impl AsyncWrite + Unpin, content: Vec<u8>) -> io::Result<()> {
        stream.write_all(&content).await?;
        stream.shutdown().await
    }

    let (listener, address) = listen().await?;
    let server = tokio::spawn(serve(listener));
    let (listener, proxy_address) = listen().await?;
    let proxy = tokio::spawn(forward(listener, address));
    let content: Vec<u8> = (0..BYTES).map(|number| (number / 7) as u8).collect();
    let (mut reader, writer) = TcpStream::connect(proxy_address).await?.into_split();
    let sending = tokio::spawn(send(writer, content.clone()));
    let mut echo = Vec::new();
    reader.read_to_end(&mut echo).await?;
    sending.await.unwrap()?;
    server.await.unwrap()?;
    assert_eq!(proxy.await.unwrap()?, (BYTES as u64, BYTES as u64 + 7));
    assert!(echo.ends_with(b"the end") && echo[..BYTES] == content, "{} bytes", echo.len());
    Ok(())
}

#[tokio::test]
async fn requests_with_a_length_in_front_are_answered() -> io::Result<()> {
    const LENGTHS: [usize; 5] = [0, 1, 5, 4096, 100_000];

    async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
        stream.write_u32(message.len() as u32).await?;
        stream.write_all(message).await
    }

    async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
        let mut message = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut message).await?;
        Ok(message)
    }

    async fn serve(listener: TcpListener) -> io::Result<()> {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        loop {
            let mut request = receive(&mut stream).await?;
            request.reverse();
            send(&mut stream, &request).await?;
        }
    }

    fn request(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|number| number as u8).collect()
    }

    let (listener, address) = listen().await?;
    let server = tokio::spawn(serve(listener));
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    assert_eq!(stream.peer_addr()?, address);
    let (mut reader, mut writer) = stream.into_split();
    let asking = tokio::spawn(async move {
        for bytes in LENGTHS {
            send(&mut writer, &request(bytes)).await?;
        }
        Ok::<_, io::Error>(writer)
    });
    for bytes in LENGTHS {
        assert!(receive(&mut reader).await?.into_iter().rev().eq(request(bytes)), "{bytes}");
    }
    drop(asking.await.unwrap()?); // the end of the stream
    assert_eq!(server.await.unwrap().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    Ok(())
}

#[tokio::test]
async fn a_read_that_a_timeout_ends_takes_nothing() -> io::Result<()> {
    const MESSAGE: &[u8] = b"sent in parts, each after a read was dropped";

    let (listener, address) = listen().await?;
    let mut client = TcpStream::connect(address).await?;
    let (mut server, from) = listener.accept().await?;
    assert_eq!(from, client.local_addr()?);
    let (mut parts, mut received, mut buffer) = (MESSAGE.chunks(5), Vec::new(), [0; 3]);
    while received.len() < MESSAGE.len() {
        tokio::select! {
            bytes = server.read(&mut buffer) => received.extend_from_slice(&buffer[..bytes?]),
            () = sleep(Duration::from_millis(1)) => {
                if let Some(part) = parts.next() {
                    client.write_all(part).await?;
                }
            }
        }
    }
    assert_eq!(received, MESSAGE);
    Ok(())
}

#[tokio::test]
async fn errors_have_the_kinds_of_tokio() -> io::Result<()> {
    let (listener, address) = listen().await?;
    let mut stream = TcpStream::connect(address).await?;
    let (mut peer, _) = listener.accept().await?;
    stream.shutdown().await?;
    assert_eq!(stream.write(&[0]).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(peer.read(&mut [0]).await?, 0);
    drop((peer, listener));
    assert_eq!(stream.read(&mut [0]).await?, 0);
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    Ok(())
}
