//! The memory of a server that many networks send incomplete calls.

use crate::nfs_memory::check_incomplete_calls_are_bounded;

use super::victim_address;

#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn incomplete_calls_of_many_networks_take_bounded_memory() {
    check_incomplete_calls_are_bounded(victim_address);
}
