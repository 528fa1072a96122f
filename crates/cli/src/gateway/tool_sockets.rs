//! The control socket and the metrics socket, through which tools observe a gateway, and SIGHUP.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use fullsend::control::{BoundSocket, default_path};
use fullsend_gateway::Gateway;
use fullsend_gateway::metrics::{MetricsAddress, MetricsSocket};
use fullsend_gateway::namespace::{SocketRemover, Spawned};

use super::policy::{PolicySource, Reloads};

/// The environment variable with the control socket's path, or `on`, for programs whose caller cannot
/// pass an option.
const CONTROL: &str = "FULLSEND_CONTROL";
/// The environment variable with the metrics' address, for programs whose caller cannot pass an option.
const METRICS: &str = "FULLSEND_METRICS";

/// Bound sockets that are not served yet, and the policy that SIGHUP reads again.
#[derive(Default)]
pub(super) struct ToolSockets {
    control: Option<BoundSocket>,
    metrics: Option<MetricsSocket>,
    /// The process that removes the sockets' files at the end.
    remover: Option<SocketRemover>,
    /// The means to read the policy again at SIGHUP.
    policy: Option<Reloads>,
}

impl ToolSockets {
    /// Binds the sockets that options request. Must be called before the sandbox hides the files, and
    /// before the process has threads.
    pub(super) fn from_options(
        control: Option<PathBuf>,
        metrics: Option<&MetricsAddress>,
    ) -> Result<Self> {
        Self::bind(("--control", control), ("--metrics", metrics))
    }

    /// Binds the sockets that the environment requests. Must be called like
    /// [`from_options`](Self::from_options). A failure is only logged: several gateways may share the
    /// environment, and only one of them gets the address.
    pub(super) fn from_environment() -> Self {
        Self::try_from_environment().unwrap_or_else(|error| {
            tracing::warn!("{error:#}; the gateway runs without this socket");
            Self::default()
        })
    }

    fn try_from_environment() -> Result<Self> {
        let value = |name| env::var_os(name).filter(|value| !value.is_empty());
        let control = match value(CONTROL) {
            Some(on) if on == "on" => Some(default_path().context(CONTROL)?),
            path => path.map(PathBuf::from),
        };
        let metrics = value(METRICS).map(|address| {
            let address = address.to_string_lossy();
            address.parse::<MetricsAddress>().context(METRICS)
        });
        Self::bind((CONTROL, control), (METRICS, metrics.transpose()?.as_ref()))
    }

    fn bind(
        (control_name, control): (&'static str, Option<PathBuf>),
        (metrics_name, metrics): (&'static str, Option<&MetricsAddress>),
    ) -> Result<Self> {
        let control = control.map(|path| BoundSocket::bind(&path)).transpose();
        let control = control.context(control_name)?;
        let metrics = metrics.map(MetricsSocket::bind).transpose();
        let metrics = metrics.context(metrics_name)?;
        let files = metrics.iter().filter_map(MetricsSocket::file);
        let files: Vec<_> = control.iter().map(BoundSocket::file).chain(files).collect();
        let remover = match &files[..] {
            [] => None,
            files => Some(
                SocketRemover::start(files)
                    .context("cannot start the process that removes sockets")?,
            ),
        };
        Ok(Self {
            control,
            metrics,
            remover,
            policy: None,
        })
    }

    /// Makes SIGHUP read the policy again; `command` is the gateway's command. Must be called like
    /// [`from_options`](Self::from_options).
    pub(super) fn with_policy(
        mut self,
        source: Option<PolicySource>,
        command: Option<&Spawned>,
    ) -> Result<Self> {
        let reloads = source.map(|source| source.reloads(command));
        self.policy = reloads.transpose()?;
        Ok(self)
    }

    /// Returns whether SIGHUP reads the policy again.
    pub(super) const fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// Serves the sockets. Their files exist until the returned value is dropped.
    pub(super) fn serve(self, gateway: &Gateway) -> Result<Option<SocketRemover>> {
        if let Some(control) = self.control {
            gateway.handle().stack().serve_control(control)?;
        }
        if let Some(metrics) = self.metrics {
            tokio::spawn(metrics.serve(gateway.handle())?);
        }
        if let Some(policy) = self.policy {
            policy.start(gateway.handle())?;
        }
        Ok(self.remover)
    }
}
