//! Tests of how the whole operator ends, against an API server in this process: what it still writes, what becomes of its
//! Lease, and by when it is gone. No etcd runs here, so there is always something left to do for its cluster.

use std::time::Duration;

use clap::Parser;
use http::StatusCode;
use quorate_crds::{EtcdCluster, EtcdClusterSpec, manifest};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{Error, operate};
use crate::cli::Cli;
use crate::fake_api::{FakeApi, Fault};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/quorate";
const PODS: &str = "/api/v1/namespaces/ns/pods";
/// By then the kubelet kills it: terminationGracePeriodSeconds in deploy/base/deployment.yaml.
const GRACE: Duration = Duration::from_secs(15);
const MILLISECOND: Duration = Duration::from_millis(1);
/// How long each call takes each way.
const WAY: Duration = Duration::from_millis(20);

struct Operator {
    line: FakeApi,
    tell: oneshot::Sender<()>,
    run: JoinHandle<Result<(), Error>>,
}

impl Operator {
    fn starts(api: &FakeApi, name: &str) -> Self {
        let line = api.another_line();
        // The Lease is quicker: whoever hands it back too early does so before its last write arrives.
        line.disturb("leases", Fault::Lag { there: Duration::ZERO, back: Duration::ZERO });
        line.disturb("", Fault::Lag { there: WAY, back: WAY });
        let identity = format!("--identity={name}");
        let arguments = ["quorate", "--namespaces=ns", "--lease-namespace=ns", "--listen=127.0.0.1:0", &identity];
        let settings = Cli::try_parse_from(arguments).unwrap().settings;
        let (tell, told) = oneshot::channel();
        let client = line.client();
        let run = tokio::spawn(operate(settings, async { Ok(client) }, async { drop(told.await) }));
        Self { line, tell, run }
    }

    /// Tells it to stop. Says how long it took to end.
    async fn stops(self) -> Duration {
        let begun = Instant::now();
        self.tell.send(()).unwrap();
        self.run.await.unwrap().unwrap();
        begun.elapsed()
    }
}

/// An API server that has the definitions and one cluster.
fn server() -> FakeApi {
    let api = FakeApi::default();
    for definition in [manifest::cluster(), manifest::backup()] {
        let name = definition.metadata.name.clone().unwrap();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        api.put(&path, serde_json::to_value(definition).unwrap());
    }
    let mut cluster = EtcdCluster::new("db", EtcdClusterSpec::default());
    cluster.metadata.generation = Some(1);
    let path = "/apis/quorate.dev/v1alpha1/namespaces/ns/etcdclusters/db";
    api.put(path, serde_json::to_value(cluster).unwrap());
    api
}

/// Waits until something is so.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_mins(1), "{what}");
        sleep(MILLISECOND).await;
    }
}

fn holder(api: &FakeApi) -> String {
    api.object(LEASE)["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

fn writes(api: &FakeApi) -> Vec<String> {
    api.written().into_iter().filter(|line| !line.ends_with(" leases quorate")).collect()
}

#[tokio::test(start_paused = true)]
async fn told_to_stop_in_the_midst_of_its_work_it_writes_nothing_more_and_hands_the_lease_back() {
    let undisturbed = server();
    let operator = Operator::starts(&undisturbed, "a");
    until("all pods", || undisturbed.names(PODS).len() == 3).await;
    let all = writes(&undisturbed);
    assert!(all.len() > 9, "{all:?}");
    operator.stops().await;
    for count in 1..all.len() {
        let api = server();
        let operator = Operator::starts(&api, "a");
        until("so many writes", || writes(&api).len() >= count).await;
        // By then the next one is on its way.
        sleep(WAY + WAY / 2).await;
        let stopping = tokio::spawn(operator.stops());
        // What is on its way arrives.
        sleep(WAY + MILLISECOND).await;
        let arrived = writes(&api);
        assert!(stopping.await.unwrap() < GRACE);
        assert_eq!(writes(&api), arrived, "after {count} writes");
        assert_eq!((api.written().last().unwrap().as_str(), holder(&api).as_str()), ("PUT leases quorate", ""));
        sleep(GRACE).await;
        assert_eq!(writes(&api), arrived, "nothing of it is left that writes");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_one_goes_on_where_it_stopped() {
    let api = server();
    let first = Operator::starts(&api, "a");
    until("its first write", || !writes(&api).is_empty()).await;
    let second = Operator::starts(&api, "b");
    let begun = Instant::now();
    assert!(first.stops().await < GRACE);
    until("all pods", || api.names(PODS).len() == 3).await;
    assert_eq!(holder(&api), "b");
    assert!(begun.elapsed() < Duration::from_secs(5), "it did not wait until the Lease ran out: {:?}", begun.elapsed());
    assert!(second.stops().await < GRACE);
    assert_eq!(holder(&api), "");
}

#[tokio::test(start_paused = true)]
async fn it_ends_in_time_though_nobody_answers_any_more() {
    for calls in ["", "GET", "PUT", "leases"] {
        let api = server();
        let operator = Operator::starts(&api, "a");
        until("its first write", || !writes(&api).is_empty()).await;
        operator.line.mend();
        operator.line.disturb(calls, Fault::Lose);
        sleep(MILLISECOND).await;
        let took = operator.stops().await;
        assert!(took < GRACE, "{calls}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_a_list_never_takes_the_lease_and_ends_at_once() {
    let api = server();
    let operator = Operator::starts(&api, "a");
    operator.line.mend();
    operator.line.disturb("GET /api/v1/namespaces/ns/pods?", Fault::Refuse(StatusCode::FORBIDDEN));
    sleep(Duration::from_mins(1)).await;
    assert!(!operator.run.is_finished());
    assert!(operator.stops().await < Duration::from_secs(1));
    assert_eq!(api.written(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_the_api_server_to_come_back_stays_and_ends_at_once_when_told() {
    for fault in [Fault::Refuse(StatusCode::UNAUTHORIZED), Fault::Lose] {
        let api = server();
        let operator = Operator::starts(&api, "a");
        operator.line.mend();
        operator.line.disturb("GET", fault);
        sleep(Duration::from_mins(1)).await;
        assert!(!operator.run.is_finished(), "{fault:?}");
        assert!(operator.stops().await < Duration::from_secs(1), "{fault:?}");
        assert_eq!(api.written(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_starts_before_the_api_server_leads_once_it_is_there() {
    let api = server();
    let operator = Operator::starts(&api, "a");
    operator.line.mend();
    operator.line.disturb("", Fault::Refuse(StatusCode::SERVICE_UNAVAILABLE));
    sleep(Duration::from_mins(1)).await;
    operator.line.mend();
    until("all pods", || api.names(PODS).len() == 3).await;
    assert_eq!(holder(&api), "a");
    assert!(operator.stops().await < GRACE);
}
