//! What was chosen, in words.

use std::fmt;

/// What was chosen on this machine, what it was compared with, and why: text for people, a line for each choice.
///
/// ```
/// # let listener = nocopy::tcp::Listener::bind("127.0.0.1:0".parse()?)?;
/// # let mut stream = nocopy::tcp::Stream::connect(listener.local_address()?)?;
/// let explanation = stream.sender().explain().to_string();
/// println!("{explanation}");
/// assert!(explanation.contains("the peer is on this machine")); // so sending without a copy was not considered
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation(String);

impl Explanation {
    pub(crate) fn of(choice: &impl fmt::Display) -> Self {
        Self(choice.to_string())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
