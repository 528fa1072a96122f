//! An axum application with routes, JSON and streaming bodies, and a hyper client.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Request, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{client, run, server};

#[derive(Clone, Serialize, Deserialize)]
struct Note {
    text: String,
}

/// The state of the application.
#[derive(Default)]
struct App {
    notes: Mutex<Vec<Note>>,
    /// Notified when the first bytes of an upload have been received.
    upload_began: Notify,
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/hello/{name}", get(hello))
        .route("/notes", get(list).post(add))
        .route("/download", get(download))
        .route("/upload", post(upload))
        .with_state(app)
}

async fn hello(Path(name): Path<String>) -> String {
    format!("Hello, {name}!")
}

async fn list(State(app): State<Arc<App>>) -> Json<Vec<Note>> {
    Json(app.notes.lock().unwrap().clone())
}

async fn add(State(app): State<Arc<App>>, Json(note): Json<Note>) -> StatusCode {
    app.notes.lock().unwrap().push(note);
    StatusCode::CREATED
}

#[derive(Deserialize)]
struct Download {
    chunks: u32,
}

/// Sends chunks of 10,000 bytes, whose number is not known when the answer begins.
async fn download(Query(download): Query<Download>) -> Body {
    let chunks = (0..download.chunks).map(|n| Ok::<_, std::io::Error>(vec![n as u8; 10_000]));
    Body::from_stream(stream::iter(chunks))
}

/// Returns the number of bytes received.
async fn upload(State(app): State<Arc<App>>, body: Body) -> String {
    let mut data = body.into_data_stream();
    let mut len = 0;
    while let Some(chunk) = data.next().await {
        len += chunk.unwrap().len();
        app.upload_began.notify_one();
    }
    len.to_string()
}

/// A running application, which ends when `stop` is dropped and its requests are answered.
struct Server {
    at: SocketAddr,
    app: Arc<App>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(net: &server::Net) -> Self {
        let listener = net.listen((net.ips()[0], 0).into()).await.unwrap();
        let at = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let app = Arc::<App>::default();
        let serve = axum::serve(listener, router(app.clone()));
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            serve.with_graceful_shutdown(stopped).await.unwrap();
        });
        Self {
            at,
            app,
            stop,
            task,
        }
    }
}

async fn connect(net: &client::Net, to: SocketAddr) -> SendRequest<Body> {
    let stream = net.connect(to).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends a request and returns the status and the body of the answer.
async fn call(http: &mut SendRequest<Body>, method: &str, path: &str, body: Body) -> (u16, Bytes) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "app")
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    http.ready().await.unwrap();
    let response = http.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, body)
}

#[test]
fn routes_json_and_errors() {
    run(async |client, server| {
        let Server { at, stop, task, .. } = Server::start(&server).await;
        let mut http = connect(&client, at).await;
        let (status, body) = call(&mut http, "GET", "/hello/world", Body::empty()).await;
        assert_eq!((status, &*body), (200, &b"Hello, world!"[..]));
        let note = Body::from(json!({ "text": "first" }).to_string());
        assert_eq!(call(&mut http, "POST", "/notes", note).await.0, 201);
        let (_, body) = call(&mut http, "GET", "/notes", Body::empty()).await;
        let notes: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(notes, json!([{ "text": "first" }]));
        assert_eq!(
            call(&mut http, "POST", "/notes", Body::from("{")).await.0,
            400
        );
        assert_eq!(call(&mut http, "GET", "/none", Body::empty()).await.0, 404);
        drop((http, stop));
        task.await.unwrap();
    });
}

#[test]
fn bodies_are_streamed_in_both_directions() {
    run(async |client, server| {
        let Server { at, stop, task, .. } = Server::start(&server).await;
        let mut http = connect(&client, at).await;
        let (status, body) = call(&mut http, "GET", "/download?chunks=100", Body::empty()).await;
        assert_eq!((status, body.len()), (200, 1_000_000));
        let chunks = body.chunks(10_000).enumerate();
        assert!(
            chunks
                .into_iter()
                .all(|(n, chunk)| chunk.iter().all(|&byte| byte == n as u8))
        );
        let chunks = (0..100).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 10_000]));
        let body = Body::from_stream(stream::iter(chunks));
        let (status, body) = call(&mut http, "POST", "/upload", body).await;
        assert_eq!((status, &*body), (200, &b"1000000"[..]));
        drop((http, stop));
        task.await.unwrap();
    });
}

#[test]
fn requests_in_progress_are_answered_before_the_end() {
    run(async |client, server| {
        let Server {
            at,
            app,
            stop,
            task,
        } = Server::start(&server).await;
        let mut http = connect(&client, at).await;
        // The body ends only after the application was requested to end.
        let (more, body) = mpsc::channel::<Vec<u8>>(1);
        let body = stream::unfold(body, |mut body| async {
            let chunk = body.recv().await?;
            Some((Ok::<_, std::io::Error>(chunk), body))
        });
        let answer = call(&mut http, "POST", "/upload", Body::from_stream(body));
        let end = async {
            more.send(vec![0; 1000]).await.unwrap();
            app.upload_began.notified().await;
            drop(stop);
            more.send(vec![0; 1000]).await.unwrap();
            drop(more);
        };
        let ((status, body), ()) = tokio::join!(answer, end);
        assert_eq!((status, &*body), (200, &b"2000"[..]));
        task.await.unwrap();
    });
}
