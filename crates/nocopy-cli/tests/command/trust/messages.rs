//! `nocopy serve`: clients that ask, beside one network that floods, stalls and forges.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nocopy::message::Endpoint;
use nocopy_proto::message::wire::{
    Abort, AbortReason, COOKIE_BYTES, Connect, Hello, Parameters, Placement, Unknown, Versions,
};

use super::slow_stream::SlowStream;
use super::{RunningAttack, attacker_address, flood_connections, run_victims_during_attack};
use crate::ping::{RunningServer, assert_all_answered, run_ping};

/// Clients, one after the other, and what each asks: short messages, and long ones, which go by a stream.
const CLIENTS: usize = 3;
const ASKED: [[&str; 2]; 2] = [["100", "64"], ["30", "100000"]];

/// All questions of all clients are answered beside the attack.
fn check_pings_during_attack(
    scheme: &str,
    attackers: usize,
    before: u64,
    attack: impl Fn(usize, &RunningAttack, SocketAddr) + Sync,
) {
    let server = RunningServer::start(&[&format!("{scheme}://127.0.0.1:0")], &["--wait", "block"]);
    let target = server.targets[0].clone();
    let address = target.split_once("://").unwrap().1.parse().unwrap();
    run_victims_during_attack(
        attackers,
        before,
        |number, attacking| attack(number, attacking, address),
        || {
            for [count, size] in (0..CLIENTS).flat_map(|_| ASKED) {
                let options = ["--count", count, "--size", size, "--wait", "block", "--timeout", "60s"];
                assert_all_answered(&run_ping(&target, &options), count.parse().unwrap());
            }
        },
    );
    let counts = server.stop();
    let numbers = ASKED.map(|asked| asked.map(|number| number.parse::<u64>().unwrap()));
    // A service of streams knows no messages.
    let (field, asked): (_, u64) = match scheme {
        "tcp" => ("bytes", numbers.iter().map(|[count, size]| count * size).sum()),
        _ => ("answered", numbers.iter().map(|[count, _]| count).sum()),
    };
    let done = counts[0][field].as_u64().unwrap_or_else(|| panic!("{counts:?}"));
    assert!(done >= CLIENTS as u64 * asked, "{counts:?}");
}

/// Units that never end, of more streams than there is memory for, leave memory and streams to others.
#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn slow_streams_leave_memory_to_others() {
    const STREAMS: usize = 90;
    // A third of a megabyte in 10 s: more than a stream must bring.
    const BYTES: usize = 17_000;
    const EVERY: Duration = Duration::from_millis(500);
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    check_pings_during_attack("message", 1, STREAMS as u64, |_, attacking, address| {
        let mut opened = 0;
        let mut streams: Vec<SlowStream> = Vec::new();
        while attacking.is_running() {
            streams.retain_mut(|stream| stream.continue_stream(BYTES).is_ok());
            if streams.len() < STREAMS
                && let Some(stream) = SlowStream::open(attacker_address(opened), address, opened as u64 + 1)
            {
                streams.push(stream);
                opened += 1;
                attacking.add_done(1);
            } else {
                std::thread::sleep(EVERY);
            }
        }
    });
}

/// Datagrams of no connection, of all kinds, and connections that say nothing, take no place of others.
#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn forged_datagrams_and_idle_connections_affect_no_other_client() {
    check_pings_during_attack("message", 4, 1000, |number, attacking, address| match number {
        0 => open_idle_connections(attacking, address),
        _ => send_forged_datagrams(number, attacking, address),
    });
}

fn open_idle_connections(attacking: &RunningAttack, address: SocketAddr) {
    let mut connected = 0;
    let mut endpoints = Vec::new();
    while attacking.is_running() {
        let mut endpoint = Endpoint::builder().bind(SocketAddr::new(attacker_address(connected), 0)).unwrap();
        let _ = endpoint.connect(address, Duration::from_secs(1));
        endpoints.push(endpoint);
        if endpoints.len() == 50 {
            endpoints.clear();
        }
        connected += 1;
        attacking.add_done(1);
    }
}

fn send_forged_datagrams(number: usize, attacking: &RunningAttack, address: SocketAddr) {
    // Endless ones would only show whose datagrams the kernel drops.
    const SENT_MAX: u64 = 100_000;
    let mut sent = 0;
    let mut out = Vec::new();
    while attacking.is_running() && sent < SENT_MAX {
        let socket = UdpSocket::bind((attacker_address(number + sent as usize), 0)).unwrap();
        for _ in 0..1000 {
            match sent % 5 {
                0 => Hello { versions: Versions::HERE, client_id: sent }.emit(&mut out),
                1 => Hello { versions: Versions { first: 77, last: 78 }, client_id: sent }.emit(&mut out),
                2 => connect_request(sent).emit(&mut out),
                3 => Unknown { to: sent }.emit(&mut out),
                _ => Abort { to: sent, reason: AbortReason(1) }.emit(&mut out),
            }
            let _ = socket.send_to(&out, address);
            // Damaged, too.
            let at = sent as usize % out.len();
            out[at] ^= 1 << (sent % 8);
            let _ = socket.send_to(&out, address);
            sent += 1;
            attacking.add_done(1);
        }
    }
}

fn connect_request(number: u64) -> Connect {
    let parameters = Parameters {
        datagram_bytes: 1472,
        max_message_bytes: 1 << 20,
        initial_credit: 1024,
        first_sequence: 1,
        crc: false,
        stream_key: None,
        placement: Placement::None,
    };
    Connect { client_id: number, cookie: [number as u8; COOKIE_BYTES], parameters }
}

/// Connections of one network that ask nothing, or half a question, leave some to others.
#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn tcp_connections_of_one_network_leave_room_for_others() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    check_pings_during_attack("tcp", 8, 1000, |number, attacking, address| {
        flood_connections(number, attacking, address, 200, |done| &[0xff; 40][..done % 40]);
    });
}
