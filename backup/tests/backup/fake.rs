//! A member in this process whose snapshot goes as told.

use std::pin::Pin;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse, PbDowngradeRequest,
    PbDowngradeResponse, PbHashKvRequest, PbHashKvResponse, PbHashRequest, PbHashResponse, PbMaintenanceServer,
    PbMaintenanceService, PbMoveLeaderRequest, PbMoveLeaderResponse, PbResponseHeader, PbSnapshotRequest,
    PbSnapshotResponse, PbStatusRequest, PbStatusResponse,
};
use futures::Stream;
use futures::stream;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Where the bytes of the database come from: piece by piece, by number.
pub type Pieces = Arc<dyn Fn(usize) -> Option<Vec<u8>> + Send + Sync>;

/// What becomes of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// All of it is sent.
    Sound,
    /// After this many pieces etcd reports an error.
    ErrorAfter(usize),
    /// After this many pieces the stream ends as if it were complete.
    EndsAfter(usize),
    /// All is sent but the hash.
    WithoutHash,
    /// One bit of this piece changes on its way.
    FlippedIn(usize),
    /// Nothing at all is sent.
    Nothing,
}

/// The version of a member that says nothing else.
const VERSION: &str = "3.6.16";

/// The member's own id.
const ID: u64 = 3;

struct Fake {
    mood: Mood,
    pieces: Pieces,
    version: &'static str,
    leader: u64,
}

/// The member, until it is dropped.
pub struct Served {
    pub url: String,
    runtime: Option<Runtime>,
}

impl Served {
    pub fn start(mood: Mood, pieces: Pieces) -> Self {
        Self::of_version(VERSION, mood, pieces)
    }

    pub fn of_version(version: &'static str, mood: Mood, pieces: Pieces) -> Self {
        Self::serve(Fake { mood, pieces, version, leader: ID })
    }

    /// One that follows, and answers nothing that takes the others.
    pub fn following(pieces: Pieces) -> Self {
        Self::serve(Fake { mood: Mood::Sound, pieces, version: VERSION, leader: ID + 1 })
    }

    fn serve(fake: Fake) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let service = PbMaintenanceServer::new(fake);
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { url, runtime: Some(runtime) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// Where a stream is.
enum Turn {
    Piece(usize, Context),
    Hash(Context),
    End,
}

fn answer(blob: Vec<u8>) -> PbSnapshotResponse {
    PbSnapshotResponse { header: None, remaining_bytes: 0, blob, version: String::new() }
}

impl Fake {
    fn turn(mood: Mood, pieces: &Pieces, turn: Turn) -> Option<(Result<PbSnapshotResponse, Status>, Turn)> {
        let (number, mut hash) = match turn {
            Turn::End => return None,
            Turn::Hash(_) if mood == Mood::WithoutHash => return None,
            Turn::Hash(hash) => return Some((Ok(answer(hash.finish().as_ref().to_vec())), Turn::End)),
            Turn::Piece(number, hash) => (number, hash),
        };
        if mood == Mood::Nothing || mood == Mood::EndsAfter(number) {
            return None;
        }
        if mood == Mood::ErrorAfter(number) {
            return Some((Err(Status::unavailable("etcdserver: stopped")), Turn::End));
        }
        let Some(mut piece) = pieces(number) else { return Self::turn(mood, pieces, Turn::Hash(hash)) };
        hash.update(&piece);
        if mood == Mood::FlippedIn(number) {
            piece[100] ^= 4;
        }
        Some((Ok(answer(piece)), Turn::Piece(number + 1, hash)))
    }
}

fn never<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("never asked"))
}

#[tonic::async_trait]
impl PbMaintenanceService for Fake {
    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<PbSnapshotResponse, Status>> + Send>>;

    async fn status(&self, _: Request<PbStatusRequest>) -> Result<Response<PbStatusResponse>, Status> {
        let header = Some(PbResponseHeader { cluster_id: 0xab, member_id: ID, ..PbResponseHeader::default() });
        let status =
            PbStatusResponse { leader: self.leader, version: self.version.into(), ..PbStatusResponse::default() };
        Ok(Response::new(PbStatusResponse { header, ..status }))
    }

    async fn snapshot(&self, _: Request<PbSnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        let (mood, pieces) = (self.mood, Arc::clone(&self.pieces));
        let first = Turn::Piece(0, Context::new(&SHA256));
        let turns = stream::unfold(first, move |turn| std::future::ready(Self::turn(mood, &pieces, turn)));
        Ok(Response::new(Box::pin(turns)))
    }

    async fn alarm(&self, _: Request<PbAlarmRequest>) -> Result<Response<PbAlarmResponse>, Status> {
        never()
    }

    async fn defragment(&self, _: Request<PbDefragmentRequest>) -> Result<Response<PbDefragmentResponse>, Status> {
        never()
    }

    async fn hash(&self, _: Request<PbHashRequest>) -> Result<Response<PbHashResponse>, Status> {
        never()
    }

    async fn hash_kv(&self, _: Request<PbHashKvRequest>) -> Result<Response<PbHashKvResponse>, Status> {
        never()
    }

    async fn move_leader(&self, _: Request<PbMoveLeaderRequest>) -> Result<Response<PbMoveLeaderResponse>, Status> {
        never()
    }

    async fn downgrade(&self, _: Request<PbDowngradeRequest>) -> Result<Response<PbDowngradeResponse>, Status> {
        never()
    }
}
