//! What ownership forbids: each file in `ownership/` must not compile, for the reason beside it.
#![allow(missing_docs)]

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ownership/*.rs");
}
