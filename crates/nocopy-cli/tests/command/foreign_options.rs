//! Command lines as they are typed for other programs, on real traffic.

use crate::run::send_until;
use crate::running::{RunningNocopy, lossy_text, nocopy_command};
use nocopy_lab::End;

fn start_in_namespace(end: &End, arguments: &[&str]) -> RunningNocopy {
    end.namespace().run(|| RunningNocopy(Some(nocopy_command(arguments).spawn().unwrap())))
}

#[test]
fn options_of_tcpdump_and_tcpreplay_are_accepted() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let (left, right) = (lab.left(), lab.right());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.pcapng");
    let file = file.to_str().unwrap();
    let words = ["-nni", right.interface(), "-s0", "-c3"];
    let words = |command| [&[command][..], &words].concat();
    let filter = ["udp", "port", "9000"];
    let mut recording =
        start_in_namespace(right, &[&words("record")[..], &["-U", "-w", file], &filter].concat());
    let mut sniffing = start_in_namespace(right, &[&words("sniff")[..], &["-l", "-tt"], &filter].concat());
    send_until(&lab, || recording.has_ended() && sniffing.has_ended());
    let recorded = recording.wait_for_end();
    assert_eq!(recorded.status.code(), Some(0), "{}", lossy_text(&recorded.stderr));
    let printed = sniffing.wait_for_end();
    let lines = lossy_text(&printed.stdout);
    assert_eq!(
        (printed.status.code(), lines.lines().count()),
        (Some(0), 3),
        "{lines}{}",
        lossy_text(&printed.stderr)
    );
    assert!(lines.lines().all(|line| line.split('.').next().unwrap().parse::<u64>().is_ok()), "{lines}");

    let arguments = ["send", "-i", left.interface(), "--topspeed", "-l", "2", "--json", file];
    let (sent, code) = start_in_namespace(left, &arguments).wait_for_summary();
    assert_eq!((code, &sent["packets"], &sent["replay"]["rounds"]), (0, &6.into(), &2.into()), "{sent}");
}

#[test]
fn options_of_iperf_and_netcat_are_accepted() {
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    let receiver = start_in_namespace(lab.right(), &["recv", "-lup", "9000", "-J"]);
    let to = format!("udp://{}:9000", lab.right().ipv4());
    let (sent, code) =
        start_in_namespace(lab.left(), &["send", &to, "-k", "10", "-l", "1K", "-b", "100M", "-J"])
            .wait_for_summary();
    let (received, received_code) = receiver.wait_for_summary();
    assert_eq!((code, received_code), (0, 0), "{sent}{received}");
    assert_eq!(
        (&sent["sent"]["datagrams"], &received["received"]["datagrams"]),
        (&10.into(), &10.into()),
        "{sent}{received}"
    );
}

/// As after env(1) and strace(1): the program's own options are not ours.
#[test]
fn run_needs_no_dashes_before_the_program() {
    let library = std::env::current_exe().unwrap().with_file_name("libnocopy_pcap.so");
    let output =
        nocopy_command(&["run", "--library", library.to_str().unwrap(), "sh", "-c", "echo $1", "sh", "-i"])
            .output()
            .unwrap();
    assert_eq!(
        (output.status.code(), lossy_text(&output.stdout)),
        (Some(0), "-i\n".into()),
        "{}",
        lossy_text(&output.stderr)
    );
}
