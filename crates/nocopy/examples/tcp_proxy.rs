//! Forwards connections, without their bytes entering the program: `tcp_proxy LISTEN ONWARDS [CONNECTIONS]`

use std::error::Error;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use nocopy::tcp::{self, Proxied};

fn pass_on(client: TcpStream, onwards: SocketAddr) -> Result<Proxied, Box<dyn Error>> {
    let server = TcpStream::connect(onwards)?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?; // what was sent at once is passed on at once
    }
    Ok(tcp::proxy(client, server)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut address = || arguments.next().ok_or("usage: tcp_proxy LISTEN ONWARDS [CONNECTIONS]");
    let (listen, onwards): (SocketAddr, SocketAddr) = (address()?.parse()?, address()?.parse()?);
    let connections = arguments.next().map_or(Ok(usize::MAX), |count| count.parse())?;

    let listener = TcpListener::bind(listen)?;
    println!("{}: passing on to {onwards}", listener.local_addr()?);
    thread::scope(|scope| {
        for _ in 0..connections {
            let (client, from) = listener.accept()?;
            scope.spawn(move || match pass_on(client, onwards) {
                Ok(Proxied { there, back }) => println!("{from}: {there} bytes there, {back} back"),
                Err(error) => println!("{from}: {error}"),
            });
        }
        Ok(())
    })
}
