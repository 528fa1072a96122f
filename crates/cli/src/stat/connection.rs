//! A connection to a control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use fullsend::control::{Reply, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
}

/// Returns the error text for a socket that cannot be used.
pub(crate) fn connect_error(path: &Path) -> String {
    format!(
        "cannot connect to {}; name the control socket of a running stack, and run as the user of \
         the stack",
        path.display()
    )
}

impl Connection {
    pub(crate) fn to(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| connect_error(path))?;
        Ok(Self {
            stream: BufReader::new(stream),
            line: Vec::new(),
        })
    }

    /// Sends a request and returns its only reply.
    pub(crate) fn request(&mut self, request: &Request) -> Result<Value> {
        self.send(request)?;
        match self.reply()? {
            Reply::Ok(value) => Ok(value),
            other => bail!(
                "the stack sent an unexpected reply: {other:?}; use a program of the stack's \
                 release"
            ),
        }
    }

    /// Sends a request and returns the items of its reply.
    pub(crate) fn request_list<T: DeserializeOwned>(
        &mut self,
        request: &Request,
    ) -> Result<Vec<T>> {
        self.send(request)?;
        let mut items = Vec::new();
        loop {
            match self.reply()? {
                Reply::Item(item) => items.push(serde_json::from_value(item)?),
                Reply::End(_) => return Ok(items),
                other => bail!(
                    "the stack sent an unexpected reply: {other:?}; use a program of the stack's \
                     release"
                ),
            }
        }
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let line = request.to_line();
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .context("the stack closed the control socket")
    }

    fn reply(&mut self) -> Result<Reply> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        parse(&self.line)
    }
}

/// Parses a reply. An error reply becomes an error.
pub(crate) fn parse(line: &[u8]) -> Result<Reply> {
    if line.is_empty() {
        bail!("the stack closed the control socket");
    }
    match Reply::parse(line).map_err(|text| anyhow!("{text}"))? {
        Reply::Error(text) => Err(anyhow!(text)),
        reply => Ok(reply),
    }
}
