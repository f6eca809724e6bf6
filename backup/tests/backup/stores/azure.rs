//! Azure as azurite serves it from a folder.

use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;

use crate::clouds::azure::Account;
use crate::ports::free_address;
use crate::stores::place::Place;
use crate::stores::{Flaw, Process, Server, program};

const CONTAINER: &str = "backups";
const ACCOUNT: &str = "quorate";

pub struct Azurite {
    address: SocketAddr,
    account: Account,
    _process: Process,
    _folder: TempDir,
}

impl Azurite {
    /// With an empty container.
    pub fn start() -> Option<Self> {
        let program = program("azurite", "azurite-blob", "QUORATE_AZURITE")?;
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let account = Account::new(ACCOUNT);
        let mut command = Command::new(program);
        command
            .args(["--blobHost", &address.ip().to_string(), "--blobPort", &address.port().to_string()])
            .args(["--silent", "--disableTelemetry", "--location"])
            .arg(folder.path())
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", account.key()));
        let process = Process::start(&mut command, address);
        account.create_container(address, CONTAINER);
        Some(Self { address, account, _process: process, _folder: folder })
    }

    /// The same, reached with a token instead of the account's key.
    pub fn with_token(&self) -> WithToken<'_> {
        WithToken(self)
    }

    /// azurite takes the account's name from the path, which Azure has in the name of the host.
    fn place(&self, account: &str, container: &str, prefix: &str) -> Place {
        Place::at(format!("azure://{account}/{container}/{prefix}"))
            .with_option("endpoint", &format!("http://{}/{account}", self.address))
    }
}

impl Server for Azurite {
    fn place(&self, prefix: &str) -> Place {
        self.place(ACCOUNT, CONTAINER, prefix).with_credentials(&[("account-key", &self.account.key())])
    }

    fn flawed(&self, prefix: &str, flaw: Flaw) -> Option<Place> {
        let key = self.account.key();
        Some(match flaw {
            Flaw::WrongKey => {
                let key = Account::new(ACCOUNT).key();
                self.place(ACCOUNT, CONTAINER, prefix).with_credentials(&[("account-key", &key)])
            }
            Flaw::WrongAccount => self.place("nobody", CONTAINER, prefix).with_credentials(&[("account-key", &key)]),
            Flaw::NoBucket => self.place(ACCOUNT, "missing", prefix).with_credentials(&[("account-key", &key)]),
            Flaw::ReadOnly => {
                let token = self.account.token(CONTAINER, "rl");
                self.place(ACCOUNT, CONTAINER, prefix).with_credentials(&[("sas-token", &token)])
            }
        })
    }

    fn parts_left(&self) -> Option<usize> {
        // There is no way to take them back: Azure drops them by itself after a week.
        None
    }
}

/// A container as somebody has it who was given no more than a token for it.
pub struct WithToken<'a>(&'a Azurite);

impl Server for WithToken<'_> {
    fn place(&self, prefix: &str) -> Place {
        let token = self.0.account.token(CONTAINER, "racwdl");
        self.0.place(ACCOUNT, CONTAINER, &format!("token/{prefix}")).with_credentials(&[("sas-token", &token)])
    }

    fn flawed(&self, _: &str, _: Flaw) -> Option<Place> {
        None
    }

    fn parts_left(&self) -> Option<usize> {
        self.0.parts_left()
    }
}
