//! The places in the double of Google, with and without a flaw.

use super::{Double, KEY_FILE};
use crate::clouds::google::double::BUCKET;
use crate::clouds::google::tokens::Account;
use crate::stores::place::Place;
use crate::stores::{Flaw, Server};

impl Double {
    /// A place without credentials.
    pub fn bare(&self, prefix: &str) -> Place {
        self.at(BUCKET, prefix)
    }

    fn at(&self, bucket: &str, prefix: &str) -> Place {
        Place::at(format!("gs://{bucket}/{prefix}")).with_option("endpoint", &format!("http://{}", self.address()))
    }

    fn place(&self, bucket: &str, prefix: &str, account: &Account) -> Place {
        self.at(bucket, prefix).with_credentials(&[(KEY_FILE, &account.file())])
    }
}

impl Server for Double {
    fn place(&self, prefix: &str) -> Place {
        self.place(BUCKET, prefix, self.writer())
    }

    fn flawed(&self, prefix: &str, flaw: Flaw) -> Option<Place> {
        Some(match flaw {
            Flaw::WrongKey => self.place(BUCKET, prefix, &Account::new(self.writer().email())),
            Flaw::WrongAccount => self.place(BUCKET, prefix, &Account::new("nobody@quorate.example")),
            Flaw::NoBucket => self.place("missing", prefix, self.writer()),
            Flaw::ReadOnly => self.place(BUCKET, prefix, self.reader()),
        })
    }

    fn parts_left(&self) -> Option<usize> {
        Some(self.parts())
    }
}
