//! Real filters over real packets, and random ones over random ones.

use nocopy_proto::filter::Program;

use super::Filter;

#[test]
fn a_filter_by_hand() {
    for text in [
        "1,6 0 0 0",
        "1,6 0 0 262144",
        "2,128 0 0 0,22 0 0 0",
        "2,40 0 0 12,22 0 0 0",
        "3,177 0 0 14,80 0 0 14,22 0 0 0",
        "4,40 0 0 0,7 0 0 0,80 0 0 0,22 0 0 0",
        "4,32 0 0 0,7 0 0 0,80 0 0 0,22 0 0 0",
        "2,32 0 0 4293918720,22 0 0 0",
        "2,32 0 0 4292870150,22 0 0 0",
    ] {
        let program = Program::parse(text).unwrap();
        let filter = Filter::new(&program).unwrap().unwrap();
        for bytes in [14, 60, 100, 3000, 9000, 40000, 65000] {
            let packet: Vec<u8> = (1..=bytes).map(|at: u32| at as u8).collect();
            for cut in [0, 1, 2, 50, 51] {
                filter.check(&packet, cut);
            }
        }
    }
}
