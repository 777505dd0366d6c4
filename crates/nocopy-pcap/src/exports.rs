//! What programs call: the 94 functions and 2 objects of `exports.txt`.
//!
//! Every function here has the contract of its namesake in libpcap's manual, which its `SAFETY` comments call the program's word.

mod data;
mod delegated;
mod opening;
mod options;
mod reading;
mod saving;
mod sending;
mod settings;
