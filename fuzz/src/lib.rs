//! The way into a fuzz target: libFuzzer's where cargo-fuzz builds it, and a type check in every other build.

#[cfg(fuzzing)]
pub use libfuzzer_sys::fuzz_target as target;

/// Defines a target: `target!(|bytes: &[u8]| check(bytes))`.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! target {
    (|$input:ident: $of:ty| $check:expr) => {
        fn main() -> std::process::ExitCode {
            let _check = |$input: $of| $check;
            eprintln!("built without the fuzzer: run it with 'cargo +nightly fuzz run NAME'");
            std::process::ExitCode::from(2)
        }
    };
}
