//! Azure behind somebody who has troubles with requests: azurite answers what is not troubled.

use std::net::Ipv4Addr;
use std::thread;

use futures::TryStreamExt;
use tokio::runtime::Runtime;

use super::azure::Azurite;
use super::place::Place;
use super::troubles::Troubling;
use super::{Flaw, Server};
use crate::clouds::gate::Gate;
use crate::clouds::google::trouble::Trouble;

/// The store, until it is dropped.
pub struct TroubledAzure {
    server: Azurite,
    gate: Gate,
}

impl TroubledAzure {
    /// Without trouble, for now. None: there is no server to be had.
    pub fn start() -> Option<Self> {
        let server = Azurite::start()?;
        let gate = Gate::before_azure(server.address(), server.token("d"), Ipv4Addr::LOCALHOST);
        Some(Self { server, gate })
    }
}

impl Server for TroubledAzure {
    fn place(&self, prefix: &str) -> Place {
        self.server.behind(self.gate.address(), prefix)
    }

    fn flawed(&self, _: &str, _: Flaw) -> Option<Place> {
        None
    }

    fn parts_left(&self) -> Option<usize> {
        self.server.parts_left()
    }
}

impl Troubling for TroubledAzure {
    fn knows(&self, trouble: Trouble) -> bool {
        self.gate.knows(trouble)
    }

    fn turn_to(&self, trouble: Trouble) {
        self.gate.turn_to(trouble);
    }

    fn troubled_requests(&self) -> usize {
        self.gate.troubled_requests()
    }

    fn count(&self, prefix: &str, part: &str) -> usize {
        let store = self.server.place(prefix).open();
        let listed = async { store.list(None).try_collect::<Vec<_>>().await.unwrap() };
        // On a thread of its own: who asks may be in a runtime, and then can't wait for another one.
        let listed = thread::scope(|scope| scope.spawn(|| Runtime::new().unwrap().block_on(listed)).join().unwrap());
        listed.iter().filter(|listed| listed.key.to_string().contains(part)).count()
    }
}
