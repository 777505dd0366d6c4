//! `nocopy record`.

use crate::arguments::RecordArguments;
use crate::{Failure, Outcome};

pub(crate) fn run(_arguments: &RecordArguments) -> Result<Outcome, Failure> {
    todo!()
}
