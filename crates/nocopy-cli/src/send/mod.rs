//! `nocopy send`.

use crate::arguments::SendArguments;
use crate::{Failure, Outcome};

pub(crate) fn run(_arguments: &SendArguments) -> Result<Outcome, Failure> {
    todo!()
}
