//! How a cluster's certificates are, as it is reported. Only data.

use jiff::Timestamp;

use super::{Fault, Faults};

/// How a cluster's certificates are, for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Certificates {
    /// There are none, by wish.
    Off,
    /// They are being issued.
    #[default]
    Pending,
    /// An authority is gone.
    Lost {
        /// Its Secret.
        secret: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Something can't be used.
    Faulty(Faults),
    /// All can be used.
    Valid {
        /// The Secret whose time is over first.
        secret: String,
        /// When.
        until: Timestamp,
        /// It should have been renewed by now.
        expiring: bool,
    },
}

impl Certificates {
    /// When the first of them runs out, if all can be used.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Valid { until, .. } => Some(*until),
            Self::Off | Self::Pending | Self::Lost { .. } | Self::Faulty(_) => None,
        }
    }
}
