//! A bucket of Google's own, which somebody who has one names by two variables: what the double can't prove. All is done below
//! a prefix of this run's own, and removed at the end.

use std::fs;

use futures::TryStreamExt;

use crate::stores::place::Place;
use crate::stores::{Flaw, Server};

pub struct Bucket {
    /// `gs://bucket/prefix`, with a folder for this run.
    address: String,
    /// The content of the service account's key file.
    key: String,
}

impl Bucket {
    pub fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        let run = format!("test-{:016x}", fastrand::u64(..));
        let path = variable("QUORATE_GCS_KEY");
        let key = fs::read_to_string(&path).unwrap_or_else(|error| panic!("failed to read {path}: {error}"));
        Self { address: format!("{}/{run}", variable("QUORATE_GCS").trim_end_matches('/')), key }
    }

    /// Removes all that this run has written.
    pub async fn clear(&self) {
        let place = self.at(&self.address);
        let store = place.open();
        let found: Vec<_> = store.list(None).try_collect().await.unwrap();
        for listed in found {
            store.delete(&listed.key).await.unwrap();
        }
    }

    fn at(&self, address: &str) -> Place {
        Place::at(address.to_owned()).with_credentials(&[("service-account.json", &self.key)])
    }
}

impl Server for Bucket {
    fn place(&self, prefix: &str) -> Place {
        self.at(&format!("{}/{prefix}", self.address))
    }

    fn flawed(&self, prefix: &str, flaw: Flaw) -> Option<Place> {
        match flaw {
            // Of a length and form that nobody has taken.
            Flaw::NoBucket => Some(self.at(&format!("gs://quorate-{:016x}/{prefix}", fastrand::u64(..)))),
            // They take another account, and this has only one.
            Flaw::WrongKey | Flaw::WrongAccount | Flaw::ReadOnly => None,
        }
    }

    fn parts_left(&self) -> Option<usize> {
        None
    }
}
