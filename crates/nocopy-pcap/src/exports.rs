//! The 94 functions and 2 objects of libpcap that programs use, and dlopen(3), listed in `exports.txt`.
//!
//! Every function here has the contract of its namesake in libpcap's manual: what the caller guarantees, in
//! `SAFETY` comments.

mod data;
mod delegated;
mod dlopen;
mod exit;
mod opening;
mod options;
mod reading;
mod saving;
mod sending;
mod settings;
