//! The revision of users and roles. They are in no watch, so a change of this number is how a change of them is noticed.
//! etcd-client has no call for it.

use etcd_client::proto::PbResponseHeader;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::access::Connection;

/// `AuthStatusRequest` of etcd's `rpc.proto`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct AuthStatusRequest {}

/// `AuthStatusResponse` of etcd's `rpc.proto`.
#[derive(Clone, PartialEq, prost::Message)]
struct AuthStatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<PbResponseHeader>,
    #[prost(bool, tag = "2")]
    enabled: bool,
    #[prost(uint64, tag = "3")]
    auth_revision: u64,
}

/// Asks for the revision of users and roles.
pub struct AuthRevision {
    connection: Connection,
    token: Option<String>,
}

impl AuthRevision {
    /// By this connection.
    pub fn new(connection: Connection) -> Self {
        Self { connection, token: None }
    }

    /// The revision now. It goes through etcd's log, so it is not for asking every moment.
    pub async fn ask(&mut self) -> Result<u64, etcd_client::Error> {
        // Of who shows no token etcd does not say that one is missing, but that the user has no name.
        if self.token.is_none() {
            self.log_in().await?;
        }
        match self.try_once().await {
            // Tokens run out.
            Err(status) if status.code() == Code::Unauthenticated && self.connection.user.is_some() => {
                self.log_in().await?;
                Ok(self.try_once().await?)
            }
            result => Ok(result?),
        }
    }

    async fn log_in(&mut self) -> Result<(), etcd_client::Error> {
        let Some((name, password)) = self.connection.user.clone() else { return Ok(()) };
        let mut client = self.connection.client.auth_client();
        let answer = Box::pin(client.authenticate(name, password)).await?;
        self.token = Some(answer.token().to_owned());
        Ok(())
    }

    async fn try_once(&self) -> Result<u64, Status> {
        let mut request = Request::new(AuthStatusRequest {});
        if let Some(token) = self.token.as_ref().and_then(|token| token.parse().ok()) {
            request.metadata_mut().insert("token", token);
        }
        let mut grpc = Grpc::new(self.connection.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static("/etcdserverpb.Auth/AuthStatus");
        let answer: Response<AuthStatusResponse> = grpc.unary(request, path, ProstCodec::default()).await?;
        Ok(answer.into_inner().auth_revision)
    }
}
