//! S3 behind somebody who has troubles with requests: versitygw answers what is not troubled.

use std::net::Ipv4Addr;

use super::place::Place;
use super::s3::VersityGw;
use super::troubles::Troubling;
use super::{Flaw, Server};
use crate::clouds::gate::Gate;
use crate::clouds::google::trouble::Trouble;
use crate::stores::volume::files;

/// The store, until it is dropped.
pub struct TroubledS3 {
    server: VersityGw,
    gate: Gate,
}

impl TroubledS3 {
    /// Without trouble, for now. None: there is no server to be had.
    pub fn start() -> Option<Self> {
        let server = VersityGw::start()?;
        let gate = Gate::before(server.address(), server.buckets(), Ipv4Addr::LOCALHOST);
        Some(Self { server, gate })
    }
}

impl Server for TroubledS3 {
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

impl Troubling for TroubledS3 {
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
        files(&self.server.folder(prefix), part)
    }
}
