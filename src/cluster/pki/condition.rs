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
    /// An authority is gone, or is not the one that it was.
    Lost {
        /// Its Secret.
        secret: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Something can't be used.
    Faulty(Faults),
    /// All can be used; or one of those that can is expiring, which outweighs that others are being issued.
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

#[cfg(test)]
mod tests {
    use super::super::fixture::NOW;
    use super::*;

    #[test]
    fn days_are_counted_only_of_certificates_that_can_all_be_used() {
        let valid = |expiring: bool| Certificates::Valid { secret: "db-0".into(), until: NOW, expiring };
        assert_eq!([valid(false), valid(true)].map(|all| all.until()), [Some(NOW); 2]);
        let lost = Certificates::Lost { secret: "db-peer-ca".into(), fault: Fault::SecretMissing };
        let faulty = Certificates::Faulty(vec![("db-0".into(), Fault::Expired(NOW))]);
        for others in [Certificates::Off, Certificates::Pending, lost, faulty] {
            assert_eq!(others.until(), None, "{others:?}");
        }
    }
}
