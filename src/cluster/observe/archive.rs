//! Asks the sidecars that keep the continuous backup how they are. Seldom: what they say decides nothing, and is reported.
//! Who does not answer stays unknown.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate_backup::archive::status::{PATH, PORT, Report};
use quorate_crds::EtcdCluster;
use quorate_etcd::{Access, Endpoint, plain_http};
use quorate_statemachine::{PodStage, Serial};

use super::pods::PodFacts;
use crate::cluster::render::{self, Audience};

/// The shortest time between two looks: in a transition members are looked at twenty times a second.
const EVERY: Duration = Duration::from_secs(2);

/// What they said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archives {
    /// When they were asked.
    asked: Option<Instant>,
    /// By member; `None` for one that did not answer.
    pub reports: BTreeMap<Serial, Option<Report>>,
}

/// Asks those of a cluster that is to have them, or gives what they said a moment ago. They let in whom their members do; those
/// that an operator of before has made let in everybody, and speak no TLS.
pub async fn ask(
    cluster: &EtcdCluster,
    pods: &BTreeMap<Serial, PodFacts>,
    access: Option<&Access>,
    earlier: &Archives,
) -> Archives {
    let Some(rendered) = render::Cluster::of(cluster).filter(|_| cluster.spec.backup.is_some()) else {
        return Archives::default();
    };
    if earlier.asked.is_some_and(|asked| asked.elapsed() < EVERY) {
        return earlier.clone();
    }
    let running = pods.iter().filter(|(_, pod)| pod.stage == PodStage::Running && !pod.leaving.leaves());
    let open = Access::plaintext();
    let asked = running.filter_map(|(serial, pod)| {
        let at = Endpoint { addr: SocketAddr::new(pod.ip?, PORT), host: rendered.host(*serial) };
        let access = match pod.archive {
            Audience::All => Some(&open),
            Audience::Clients => access,
        };
        Some((*serial, at, access))
    });
    let reports = join_all(asked.map(async |(serial, at, access)| (serial, report(access, &at).await))).await;
    Archives { asked: Some(Instant::now()), reports: reports.into_iter().collect() }
}

async fn report(access: Option<&Access>, at: &Endpoint) -> Option<Report> {
    let answer = plain_http::get_as(access?, at, PATH).await;
    let answer = answer.inspect_err(|error| tracing::trace!(?at, %error, "an archive does not answer")).ok()?;
    let found = answer.status.is_success().then_some(answer.body)?;
    serde_json::from_slice(&found).inspect_err(|error| tracing::debug!(?at, %error, "an archive's report is odd")).ok()
}
