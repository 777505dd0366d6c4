//! The memory of a server that many networks send incomplete calls.

use crate::nfs_memory::are_bounded_and_stop_no_other;

use super::victim;

#[test]
#[ignore = "an attack: cargo xtask nightly trust"]
fn incomplete_calls_of_many_networks_take_bounded_memory() {
    are_bounded_and_stop_no_other(victim);
}
