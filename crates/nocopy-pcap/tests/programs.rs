//! Programs in C, each run with the system's libpcap and with ours on the same traffic: what they see and are told is the same, line
//! by line.
#![allow(missing_docs)]

mod common;

#[test]
fn captures_are_the_same() {
    common::compare("capture");
}

#[test]
fn waits_and_threads_are_the_same() {
    common::compare("corners");
}

#[test]
fn errors_are_the_same() {
    common::compare("tolerance");
}

#[test]
fn forks_are_the_same() {
    common::compare("fork");
}

#[test]
fn sending_is_the_same() {
    common::compare("sending");
}
