//! The process of one side.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_tcp_congestion;

use super::messages::{PeerMessage, PeerReport};
use super::meter::StreamMeter;
use super::task::{PeerRole, PeerTask};
use super::{amount, proxy, receive, send};
use crate::Failure;
use crate::baseline::tcp::set_congestion_control;
use crate::child::print_message;
use crate::cpu;
use crate::stage::CONGESTION_CONTROL;
use crate::window::{TrialPhase, TrialWindow, WindowReading};
use nocopy_report::{Outcome, capability};

/// The interval at which an idle process checks for the end.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The main function of the process.
pub(crate) fn child_main(task: PeerTask) -> Result<Outcome, Failure> {
    let message = match perform_role(task) {
        Ok(report) => PeerMessage::Done(report),
        Err(error) => PeerMessage::Failed(error.to_string()),
    };
    print_message(&message).map_err(nocopy_report::Failure::Print)?;
    Ok(Outcome::Positive)
}

fn perform_role(task: PeerTask) -> io::Result<PeerReport> {
    // Before there is another thread: none of this process ever runs elsewhere, so unmapping need not
    // interrupt another processor.
    cpu::pin_thread(task.processor)?;
    let phases: &'static TrialPhases = Box::leak(Box::new(TrialPhases::for_role(&task.role)));
    match task.role {
        PeerRole::Send { to, mode, source_bytes } => {
            let stream = connect(to)?;
            phases.begin_following()?;
            send::send_stream(stream, mode, source_bytes, phases.new_meter())
        }
        PeerRole::Receive { at, mode } => {
            let listener = listen(at)?;
            phases.begin_following()?;
            receive::receive_stream(accept(&listener)?, mode, phases.new_meter())
        }
        PeerRole::SendAmount { to, bytes } => {
            let source = amount::new_source();
            let stream = connect(to)?;
            phases.begin_following()?;
            amount::send_amount(stream, &source, bytes)
        }
        PeerRole::ReceiveAmount { at, amount } => {
            let listener = listen(at)?;
            phases.begin_following()?;
            let report = amount.receive_amount(&listener, || accept(&listener))?;
            print_message(&PeerMessage::Received)?;
            phases.wait_until_over();
            Ok(report)
        }
        PeerRole::Proxy { at, to, mode } => {
            let (listener, onwards) = (listen(at)?, connect(to)?);
            phases.begin_following()?;
            let incoming = accept(&listener)?;
            print_message(&PeerMessage::UnderWay)?;
            let evidence = Some(proxy::run_proxy(&incoming, &onwards, mode)?);
            Ok(PeerReport { reading: phases.window_reading(), evidence, mapped_fraction: None })
        }
    }
}

fn listen(at: Ipv4Addr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((at, 0))?;
    // Accepted connections inherit it from the listener.
    set_tcp_congestion(&listener, CONGESTION_CONTROL)?;
    Ok(listener)
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    print_message(&PeerMessage::Listening(listener.local_addr()?))?;
    let (stream, _) = listener.accept()?;
    set_congestion_control(&stream)?;
    Ok(stream)
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    set_congestion_control(&stream)?;
    Ok(stream)
}

/// The phases of the trial, as the bench announces them.
#[derive(Debug)]
struct TrialPhases {
    window: TrialWindow,
    /// When the window began and ended, each with the processor time until then, for work that cannot be
    /// interrupted to take counts.
    marks: Mutex<Vec<(Instant, Duration)>>,
    /// Whether the process measures, and reports the start of its window.
    is_counted: bool,
}

impl TrialPhases {
    fn for_role(role: &PeerRole) -> Self {
        let is_counted = !matches!(role, PeerRole::Proxy { .. });
        Self { window: TrialWindow::for_process(), marks: Mutex::default(), is_counted }
    }

    /// Everything is open, and moving bytes needs no privileges. They are dropped before the thread starts,
    /// which would keep them.
    fn begin_following(&'static self) -> io::Result<()> {
        capability::drop_others(capability::NONE)?;
        std::thread::Builder::new().name("phases".into()).spawn(|| self.follow_phases())?;
        Ok(())
    }

    fn new_meter(&self) -> StreamMeter<'_> {
        StreamMeter::new(self.window.gauge())
    }

    /// Follows the phases, and ends the process if the bench has ended.
    fn follow_phases(&self) {
        let mut message = [0];
        let mut input = io::stdin();
        while let Ok(1) = input.read(&mut message) {
            let phase = TrialPhase::from_number(message[0]);
            self.marks.lock().expect("nobody panics with it").push((Instant::now(), cpu::process_cpu_time()));
            self.window.advance(phase);
            if phase == TrialPhase::Measure
                && !self.is_counted
                && print_message(&PeerMessage::Measuring).is_err()
            {
                break;
            }
        }
        std::process::exit(2);
    }

    fn wait_until_over(&self) {
        while self.window.is_open() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn window_reading(&self) -> WindowReading {
        let marks = self.marks.lock().expect("nobody panics with it");
        let [(start, cpu_before), (end, cpu_after), ..] = marks[..] else { return WindowReading::default() };
        WindowReading {
            elapsed: end - start,
            cpu: cpu_after.saturating_sub(cpu_before),
            ..WindowReading::default()
        }
    }
}
