//! `nocopy sniff`.

use crate::arguments::SniffArguments;
use crate::{Failure, Outcome};

pub(crate) fn run(_arguments: &SniffArguments) -> Result<Outcome, Failure> {
    todo!()
}
