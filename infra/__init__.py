"""Where the project runs: servers, deployments, hosts. Nothing else imports it."""
