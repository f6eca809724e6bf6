//! What came of proving a backup, as the agent tells it to whoever started it: JSON, small enough for the message with which
//! a container ends.

use serde::{Deserialize, Serialize};

use super::Verified;
use crate::format::GenerationKey;

/// Kubernetes keeps 4096 bytes of a container's last message. What fails says so at its begin.
const LONGEST_MESSAGE: usize = 2000;

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Report {
    /// It restores.
    Proved(Proved),
    /// It does not, or that could not be tried.
    Failed {
        /// Why.
        message: String,
    },
}

/// A backup that restores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proved {
    /// Its generation.
    pub generation: String,
    /// The revision to which it was restored.
    pub revision: u64,
    /// Entries of the history, all of which were read.
    pub entries: u64,
    /// How many of them came from deltas.
    pub events_applied: u64,
    /// The size of the restored database, in bytes.
    pub database_bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Proved {
    /// Of this generation.
    pub fn of(generation: &GenerationKey, verified: &Verified) -> Self {
        let Verified { restored, entries, took } = verified;
        Self {
            generation: generation.to_string(),
            revision: restored.revision.get(),
            entries: *entries,
            events_applied: restored.events,
            database_bytes: restored.bytes,
            seconds: took.as_secs_f64(),
        }
    }
}

impl Report {
    /// Of a failure with these words.
    pub fn failed(message: &str) -> Self {
        Self::Failed { message: message.chars().take(LONGEST_MESSAGE).collect() }
    }
}
