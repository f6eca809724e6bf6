//! S3 and Azure behind somebody who has troubles with requests: versitygw and azurite answer what is not troubled.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use futures::TryStreamExt;
use http::StatusCode;
use tokio::runtime::Runtime;

use super::azure::Azurite;
use super::place::Place;
use super::s3::VersityGw;
use super::troubles::Troubling;
use super::volume::files;
use super::{Flaw, Server};
use crate::clouds::gate::Gate;
use crate::clouds::google::trouble::Trouble;

/// The store, until it is dropped.
pub struct Troubled<S> {
    server: S,
    gate: Gate,
}

impl Troubled<VersityGw> {
    /// S3 without trouble, for now. None: there is no server to be had.
    pub fn s3() -> Option<Self> {
        let server = VersityGw::start()?;
        let gate = Gate::before(server.address(), server.buckets(), Ipv4Addr::LOCALHOST);
        Some(Self { server, gate })
    }
}

impl Troubled<Azurite> {
    /// The same of Azure.
    pub fn azure() -> Option<Self> {
        let server = Azurite::start()?;
        let gate = Gate::before_azure(server.address(), server.token("d"), Ipv4Addr::LOCALHOST);
        Some(Self { server, gate })
    }
}

/// A server that can be reached by way of somebody else.
trait Behind: Server {
    /// Whether it shows parts of uploads that are not complete.
    const SHOWS_PARTS: bool;

    /// A place that is reached by way of somebody who listens there.
    fn behind(&self, gate: SocketAddr, prefix: &str) -> Place;

    /// How many objects of a place have this in their names.
    fn count(&self, prefix: &str, part: &str) -> usize;
}

impl Behind for VersityGw {
    const SHOWS_PARTS: bool = true;

    fn behind(&self, gate: SocketAddr, prefix: &str) -> Place {
        self.behind(gate, prefix)
    }

    fn count(&self, prefix: &str, part: &str) -> usize {
        files(&self.folder(prefix), part)
    }
}

impl Behind for Azurite {
    const SHOWS_PARTS: bool = false;

    fn behind(&self, gate: SocketAddr, prefix: &str) -> Place {
        self.behind(gate, prefix)
    }

    fn count(&self, prefix: &str, part: &str) -> usize {
        let store = Server::place(self, prefix).open();
        let listed = async { store.list(None).try_collect::<Vec<_>>().await.unwrap() };
        // On a thread of its own: who asks may be in a runtime, and then can't wait for another one.
        let listed = thread::scope(|scope| scope.spawn(|| Runtime::new().unwrap().block_on(listed)).join().unwrap());
        listed.iter().filter(|listed| listed.key.to_string().contains(part)).count()
    }
}

impl<S: Behind> Server for Troubled<S> {
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

impl<S: Behind> Troubling for Troubled<S> {
    fn knows(&self, trouble: Trouble) -> bool {
        self.gate.knows(trouble)
    }

    fn shows_parts(&self) -> bool {
        S::SHOWS_PARTS
    }

    fn turn_to(&self, trouble: Trouble) {
        self.gate.turn_to(trouble);
    }

    fn troubled_requests(&self) -> usize {
        self.gate.troubled_requests()
    }

    fn carry_out_late(&self) -> Vec<StatusCode> {
        self.gate.carry_out_late()
    }

    fn count(&self, prefix: &str, part: &str) -> usize {
        self.server.count(prefix, part)
    }
}
