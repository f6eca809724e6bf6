//! What goes over the wire to a member and what comes of its answers, with a member in this process that answers as told.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use etcd_client::proto::{
    PbClusterServer, PbClusterService, PbMember, PbMemberAddRequest, PbMemberAddResponse, PbMemberListRequest,
    PbMemberListResponse, PbMemberPromoteRequest, PbMemberPromoteResponse, PbMemberRemoveRequest,
    PbMemberRemoveResponse, PbMemberUpdateRequest, PbMemberUpdateResponse, PbResponseHeader,
};
use quorate_etcd::{Access, CallError, ClusterId, Endpoint, MemberId, Pool, Refusal};
use tokio::runtime::Runtime;
use tonic::{Code, Request, Response, Status, transport::server::TcpIncoming};

/// How the member answers every call.
#[derive(Clone)]
enum Mood {
    Willing,
    Headless,
    Refusing(Code, &'static str),
    Mute,
}

/// A member that writes down what it was asked.
#[derive(Clone)]
struct Fake {
    mood: Mood,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    async fn asked(&self, what: String) -> Result<Option<PbResponseHeader>, Status> {
        self.asked.lock().unwrap().push(what);
        match self.mood {
            Mood::Willing => Ok(Some(PbResponseHeader { cluster_id: 9, member_id: 3, ..PbResponseHeader::default() })),
            Mood::Headless => Ok(None),
            Mood::Refusing(code, message) => Err(Status::new(code, message)),
            Mood::Mute => std::future::pending().await,
        }
    }
}

/// Two members, in the order in which etcd would never guarantee them.
fn members() -> Vec<PbMember> {
    let member = |id, name: &str, host: &str, is_learner| PbMember {
        id,
        name: name.to_owned(),
        peer_ur_ls: vec![format!("http://{host}:2380")],
        client_ur_ls: Vec::new(),
        is_learner,
    };
    vec![member(8, "", "b", true), member(3, "a", "a", false)]
}

#[tonic::async_trait]
impl PbClusterService for Fake {
    async fn member_add(&self, request: Request<PbMemberAddRequest>) -> Result<Response<PbMemberAddResponse>, Status> {
        let request = request.into_inner();
        let header = self.asked(format!("add {:?} learner {}", request.peer_ur_ls, request.is_learner)).await?;
        let member = members().into_iter().find(|member| member.id == 8);
        Ok(Response::new(PbMemberAddResponse { header, member, members: members() }))
    }

    async fn member_remove(
        &self,
        request: Request<PbMemberRemoveRequest>,
    ) -> Result<Response<PbMemberRemoveResponse>, Status> {
        let header = self.asked(format!("remove {}", request.into_inner().id)).await?;
        Ok(Response::new(PbMemberRemoveResponse { header, members: members() }))
    }

    async fn member_update(
        &self,
        _: Request<PbMemberUpdateRequest>,
    ) -> Result<Response<PbMemberUpdateResponse>, Status> {
        Err(Status::unimplemented("never asked"))
    }

    async fn member_list(
        &self,
        request: Request<PbMemberListRequest>,
    ) -> Result<Response<PbMemberListResponse>, Status> {
        let header = self.asked(format!("list linearizable {}", request.into_inner().linearizable)).await?;
        Ok(Response::new(PbMemberListResponse { header, members: members() }))
    }

    async fn member_promote(
        &self,
        request: Request<PbMemberPromoteRequest>,
    ) -> Result<Response<PbMemberPromoteResponse>, Status> {
        let header = self.asked(format!("promote {}", request.into_inner().id)).await?;
        Ok(Response::new(PbMemberPromoteResponse { header, members: members() }))
    }
}

/// A served member and a pool to reach it through. It has a runtime of its own, which takes all its connections with it.
struct Served {
    pool: Pool,
    addr: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    runtime: Option<Runtime>,
}

impl Served {
    fn start(mood: Mood) -> Self {
        Self::at("127.0.0.1:0", mood)
    }

    fn at(addr: &str, mood: Mood) -> Self {
        let listener = std::net::TcpListener::bind(addr).unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let fake = Fake { mood, asked: Arc::default() };
        let asked = fake.asked.clone();
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let server = tonic::transport::Server::builder().add_service(PbClusterServer::new(fake));
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { pool: Pool::default(), addr, asked, runtime: Some(runtime) }
    }

    fn member(&self) -> quorate_etcd::MemberClient {
        let endpoint = Endpoint { addr: self.addr, host: "db-0".into() };
        self.pool.member(&Access::plaintext(), &endpoint).unwrap()
    }

    /// Ends the member with all its connections, as a killed process does.
    async fn kill(&mut self) {
        let runtime = self.runtime.take();
        tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A runtime must not be waited for inside another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tokio::test]
async fn the_member_list_is_asked_for_linearizably() {
    let served = Served::start(Mood::Willing);
    let list = served.member().member_list().await.unwrap();
    assert_eq!(*served.asked.lock().unwrap(), ["list linearizable true"]);
    assert_eq!((list.cluster, list.answered_by), (ClusterId(9), MemberId(3)));
    assert_eq!(list.ids().into_iter().collect::<Vec<_>>(), [MemberId(3), MemberId(8)]);
    assert_eq!(list.members[0].id, MemberId(3), "sorted by id");
    let added = list.by_peer_url("http://b:2380").unwrap();
    assert_eq!((added.id, added.learner, added.started()), (MemberId(8), true, false));
    assert!(list.get(MemberId(3)).unwrap().started());
    assert_eq!((list.by_peer_url("http://c:2380"), list.get(MemberId(1))), (None, None));
}

/// Why the list is not read through etcd-client: if this fails, it may be.
#[tokio::test]
async fn etcd_client_itself_asks_for_a_list_that_may_be_stale() {
    let served = Served::start(Mood::Willing);
    let mut client = etcd_client::Client::connect([format!("http://{}", served.addr)], None).await.unwrap();
    client.member_list().await.unwrap();
    assert_eq!(*served.asked.lock().unwrap(), ["list linearizable false"]);
}

/// The operator runs many clusters on several threads.
#[tokio::test]
async fn calls_may_move_between_threads() {
    fn assert_send(_: &impl Send) {}
    let endpoint = Endpoint { addr: ([127, 0, 0, 1], 1).into(), host: "db-0".into() };
    let member = Pool::default().member(&Access::plaintext(), &endpoint).unwrap();
    assert_send(&member.member_list());
    assert_send(&member.add_learner("http://b:2380"));
    assert_send(&member.promote(MemberId(1)));
    assert_send(&member.remove(MemberId(1)));
    assert_send(&member.move_leader(MemberId(1)));
    assert_send(&member.status());
    assert_send(&quorate_etcd::look(([127, 0, 0, 1], 1).into()));
}

#[tokio::test]
async fn each_change_is_sent_as_asked() {
    let served = Served::start(Mood::Willing);
    let member = served.member();
    let added = member.add_learner("http://b:2380").await.unwrap();
    assert_eq!((added.id, added.list.members.len()), (MemberId(8), 2));
    assert_eq!(member.promote(MemberId(8)).await.unwrap().cluster, ClusterId(9));
    assert_eq!(member.remove(MemberId(5)).await.unwrap().answered_by, MemberId(3));
    let asked = served.asked.lock().unwrap();
    assert_eq!(*asked, [r#"add ["http://b:2380"] learner true"#, "promote 8", "remove 5"]);
}

#[tokio::test]
async fn a_refusal_is_told_from_an_outcome_that_nobody_knows() {
    let unhealthy = Served::start(Mood::Refusing(Code::Unavailable, "etcdserver: unhealthy cluster"));
    let error = unhealthy.member().add_learner("http://b:2380").await.unwrap_err();
    assert_eq!(error.refusal(), Some(Refusal::UnhealthyCluster));
    assert!(!error.outcome_unknown());
    let slow = Served::start(Mood::Refusing(Code::Unavailable, "etcdserver: request timed out"));
    for error in
        [slow.member().add_learner("http://b:2380").await.unwrap_err(), slow.member().member_list().await.unwrap_err()]
    {
        assert!(error.refusal().is_none() && error.outcome_unknown(), "{error}");
    }
    // The maintenance service is not there at all.
    assert_eq!(slow.member().status().await.unwrap_err().refusal(), Some(Refusal::Other));
}

#[tokio::test]
async fn a_call_without_an_answer_ends_at_its_deadline() {
    let served = Served::start(Mood::Mute);
    let begun = tokio::time::Instant::now();
    let error = served.member().member_list().await.unwrap_err();
    assert!(matches!(error, CallError::TimedOut { deadline, .. } if begun.elapsed() >= deadline), "{error}");
    assert!(error.outcome_unknown());
}

#[tokio::test]
async fn an_answer_without_a_header_is_not_taken_for_a_list() {
    let served = Served::start(Mood::Headless);
    let error = served.member().remove(MemberId(5)).await.unwrap_err();
    assert!(matches!(error, CallError::Answer { missing: "header", .. }) && error.outcome_unknown(), "{error}");
}

#[tokio::test]
async fn a_member_that_comes_back_at_its_address_is_reached_again() {
    let mut served = Served::start(Mood::Willing);
    served.member().member_list().await.unwrap();
    served.kill().await;
    let error = served.member().member_list().await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    let _again = Served::at(&served.addr.to_string(), Mood::Willing);
    served.member().member_list().await.unwrap();
}
