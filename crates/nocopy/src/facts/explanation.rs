//! What was chosen, in words.

use std::fmt;

use super::evidence::Evidence;

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
#[non_exhaustive]
pub struct Explanation {
    /// What is known of copies between the frames of the port below and the wire; `None` without a port.
    pub port_evidence: Option<Evidence>,
    text: String,
}

impl Explanation {
    pub(crate) fn of(choice: &impl fmt::Display) -> Self {
        Self { port_evidence: None, text: choice.to_string() }
    }

    /// Of what goes over a port.
    pub(crate) fn over_port(choice: &impl fmt::Display, evidence: Evidence) -> Self {
        Self { port_evidence: Some(evidence), text: choice.to_string() }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
