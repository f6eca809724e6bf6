//! What is seen of a metrics port and of a peer port, with servers in this process that answer as told. No etcd needed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use quorate_etcd::{
    ClusterId, Listener, MemberId, Role, Sight, Silence, look, peer,
    plain_http::{self, HttpError},
    who_listens,
};
use tokio::{net::TcpListener, task::JoinSet};

/// Answers by path; every other path is a 404, as on etcd and on the launcher.
type Answers = HashMap<&'static str, (StatusCode, &'static str)>;

/// A server that answers as told and writes down what it was asked.
struct Server {
    addr: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<usize>>,
    _task: JoinSet<()>,
}

impl Server {
    /// As etcd: a connection serves as many requests as one likes.
    async fn start(answers: Answers) -> Self {
        Self::serve(answers, true).await
    }

    /// As the launcher: each connection is closed after its answer.
    async fn start_closing(answers: Answers) -> Self {
        Self::serve(answers, false).await
    }

    async fn serve(answers: Answers, keep_alive: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(0));
        let mut task = JoinSet::new();
        let (log, count, answers) = (asked.clone(), connections.clone(), Arc::new(answers));
        task.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                *count.lock().unwrap() += 1;
                let (log, answers) = (log.clone(), answers.clone());
                let service = service_fn(move |request| answer(request, log.clone(), answers.clone()));
                open.spawn(async move {
                    let mut server = http1::Builder::new();
                    drop(server.keep_alive(keep_alive).serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        Self { addr, asked, connections, _task: task }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(
    request: Request<Incoming>,
    log: Arc<Mutex<Vec<String>>>,
    answers: Arc<Answers>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    log.lock()
        .unwrap()
        .push(format!("{} {} {}", head.method, head.uri, String::from_utf8_lossy(&body)).trim().to_owned());
    match answers.get(head.uri.path()) {
        // An answer that never comes.
        Some((StatusCode::PROCESSING, _)) => std::future::pending().await,
        found => {
            let (status, body) = found.copied().unwrap_or((StatusCode::NOT_FOUND, "404 page not found\n"));
            let answer = Response::builder().status(status).header("x-etcd-cluster-id", "d164b63841bc119b");
            Ok(answer.body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap())
        }
    }
}

const OK: StatusCode = StatusCode::OK;
const NEVER: StatusCode = StatusCode::PROCESSING;
const SAMPLES: [(&str, &str); 3] = [
    ("3.5.35", include_str!("testdata/metrics-3.5.35.txt")),
    ("3.6.16", include_str!("testdata/metrics-3.6.16.txt")),
    ("3.7.3", include_str!("testdata/metrics-3.7.3.txt")),
];

#[tokio::test]
async fn who_listens_is_told_by_what_only_a_launcher_has() {
    let etcd = Server::start([("/metrics", (OK, SAMPLES[0].1))].into()).await;
    assert_eq!(who_listens(etcd.addr).await, Listener::Etcd);
    assert_eq!(etcd.asked(), ["GET /quorate"], "its metrics would cost it the processor");
    let launcher = Server::start_closing([("/quorate", (OK, "{}"))].into()).await;
    assert_eq!(who_listens(launcher.addr).await, Listener::Launcher);
    for (status, body) in [(StatusCode::SERVICE_UNAVAILABLE, ""), (NEVER, "")] {
        let another = Server::start([("/quorate", (status, body))].into()).await;
        assert_eq!(who_listens(another.addr).await, Listener::Nobody, "{status}");
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(who_listens(nobody).await, Listener::Nobody);
}

#[tokio::test]
async fn etcd_of_each_line_is_seen_over_one_connection() {
    for (version, metrics) in SAMPLES {
        let server = Server::start([("/metrics", (OK, metrics)), ("/livez", (OK, "ok"))].into()).await;
        let Sight::Etcd(vitals) = look(server.addr).await else { panic!("{version} was not seen") };
        assert_eq!(vitals.version.as_deref(), Some(version));
        assert!(version.starts_with(vitals.cluster_version.as_deref().unwrap()), "{vitals:?}");
        assert_eq!(vitals.member, Some(MemberId(0xa632_4ead_7e3e_c946)));
        assert_eq!((vitals.has_leader, vitals.role, vitals.live), (true, Role::Leader, true));
        assert_eq!((vitals.committed, vitals.applied), (4, 4));
        assert_eq!(vitals.process_start.as_secs() / 100_000, 17952, "{:?}", vitals.process_start);
        assert_eq!(server.asked(), ["GET /metrics", "GET /livez"]);
        assert_eq!(*server.connections.lock().unwrap(), 1);
    }
}

#[tokio::test]
async fn learners_followers_and_the_leaderless_are_told_apart() {
    let lines = |has_leader, is_leader, is_learner| -> &'static str {
        format!(
            "etcd_server_has_leader {has_leader}\netcd_server_is_leader {is_leader}\netcd_server_is_learner {is_learner}\n\
             etcd_server_proposals_committed_total 7\netcd_server_proposals_applied_total 5\nprocess_start_time_seconds 1\n"
        )
        .leak()
    };
    for (text, has_leader, role) in [
        (lines(1, 0, 1), true, Role::Learner),
        (lines(1, 0, 0), true, Role::Follower),
        (lines(0, 0, 0), false, Role::Follower),
        (lines(1, 1, 0), true, Role::Leader),
    ] {
        let server = Server::start([("/metrics", (OK, text)), ("/livez", (OK, "ok"))].into()).await;
        let Sight::Etcd(vitals) = look(server.addr).await else { panic!("not seen: {text}") };
        assert_eq!((vitals.has_leader, vitals.role, vitals.member), (has_leader, role, None));
        assert_eq!((vitals.committed, vitals.applied), (7, 5));
    }
}

#[tokio::test]
async fn etcd_that_is_not_live_is_seen_all_the_same() {
    let (_, metrics) = SAMPLES[1];
    for livez in [(StatusCode::SERVICE_UNAVAILABLE, "[-]serializable_read failed"), (NEVER, "")] {
        let server = Server::start([("/metrics", (OK, metrics)), ("/livez", livez)].into()).await;
        let Sight::Etcd(vitals) = look(server.addr).await else { panic!("not seen") };
        assert!(!vitals.live && vitals.has_leader);
    }
}

#[tokio::test]
async fn a_launcher_is_seen_with_its_report() {
    let report = r#"{"state":"waiting","reason":"NoTicket","message":"m","since":1}"#;
    let server = Server::start_closing([("/quorate", (OK, report)), ("/livez", (OK, ""))].into()).await;
    let Sight::Launcher(body) = look(server.addr).await else { panic!("not seen") };
    assert_eq!(body, report);
    assert_eq!(server.asked(), ["GET /metrics", "GET /quorate"]);
    assert_eq!(*server.connections.lock().unwrap(), 2);
}

#[tokio::test]
async fn what_is_neither_is_silent_and_says_why() {
    let other = Server::start(Answers::new()).await;
    assert!(matches!(
        look(other.addr).await,
        Sight::Silent(Silence::Odd { path: "/quorate", status: StatusCode::NOT_FOUND })
    ));
    let broken = Server::start([("/metrics", (StatusCode::INTERNAL_SERVER_ERROR, ""))].into()).await;
    assert!(matches!(look(broken.addr).await, Sight::Silent(Silence::Odd { path: "/metrics", .. })));
    let foreign = Server::start([("/metrics", (OK, "go_goroutines 7\n"))].into()).await;
    assert!(matches!(look(foreign.addr).await, Sight::Silent(Silence::Incomplete { .. })));
    let endless = Server::start([("/metrics", (OK, "# filler\n".repeat(500_000).leak() as &str))].into()).await;
    assert!(matches!(look(endless.addr).await, Sight::Silent(Silence::Unanswered(HttpError::TooLong { .. }))));
}

#[tokio::test]
async fn nobody_and_the_mute_are_silent_within_the_deadline() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nobody = socket.local_addr().unwrap();
    assert!(matches!(look(nobody).await, Sight::Silent(Silence::Unanswered(HttpError::Connect { .. }))));
    // Connections are taken by the kernel and never answered: a paused process.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let begun = tokio::time::Instant::now();
    let sight = look(mute.local_addr().unwrap()).await;
    assert!(matches!(sight, Sight::Silent(Silence::Unanswered(HttpError::TimedOut { .. }))), "{sight:?}");
    assert!(begun.elapsed() >= plain_http::DEADLINE);
    // What speaks another language.
    let chatter = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = chatter.local_addr().unwrap();
    let speak = async {
        let (mut stream, _) = chatter.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"\x15\x03\x01 this is no HTTP\r\n").await.unwrap();
        stream
    };
    let (sight, _stream) = tokio::join!(look(addr), speak);
    assert!(matches!(sight, Sight::Silent(Silence::Unanswered(HttpError::Exchange { .. }))), "{sight:?}");
}

#[tokio::test]
async fn a_post_brings_its_body() {
    let server = Server::start([("/ticket", (OK, "taken"))].into()).await;
    let answer = plain_http::post(server.addr, "/ticket", "a ticket").await.unwrap();
    assert_eq!((answer.status, answer.body.as_ref()), (OK, b"taken".as_slice()));
    assert_eq!(server.asked(), ["POST /ticket a ticket"]);
    assert!(matches!(plain_http::get(server.addr, "no path").await, Err(HttpError::Request { .. })));
}

#[tokio::test]
async fn a_peer_port_tells_members_and_version() {
    let members = r#"[{"id":11975720866185922886,"peerURLs":["http://a:2380"],"name":"a","clientURLs":["http://a:2379"]},
                      {"id":7,"peerURLs":["http://b:2380"],"isLearner":true}]"#;
    let version = r#"{"etcdserver":"3.6.16","etcdcluster":"3.6.0","storage":"3.6.0"}"#;
    let server = Server::start([("/members", (OK, members)), ("/version", (OK, version))].into()).await;
    let hearsay = peer::members(server.addr).await.unwrap();
    assert_eq!(hearsay.cluster, Some(ClusterId(0xd164_b638_41bc_119b)));
    let ids: Vec<_> = hearsay.members.iter().map(|m| (m.id, m.learner, m.started())).collect();
    assert_eq!(ids, [(MemberId(7), true, false), (MemberId(0xa632_4ead_7e3e_c946), false, true)]);
    let version = peer::version(server.addr).await.unwrap();
    assert_eq!((version.server.as_str(), version.cluster.as_str()), ("3.6.16", "3.6.0"));
}

#[tokio::test]
async fn a_peer_port_that_tells_something_else_is_an_error() {
    let server = Server::start([("/members", (OK, "[{]"))].into()).await;
    assert!(matches!(peer::members(server.addr).await, Err(peer::PeerError::Form { .. })));
    assert!(matches!(peer::version(server.addr).await, Err(peer::PeerError::Status { .. })));
    let mute = Server::start([("/members", (NEVER, ""))].into()).await;
    let error = tokio::time::timeout(Duration::from_secs(5), peer::members(mute.addr)).await.unwrap();
    assert!(matches!(error, Err(peer::PeerError::Http(HttpError::TimedOut { .. }))));
}
