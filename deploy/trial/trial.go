// Package trial starts what deploy/ describes as processes of this host, and tries it: the compose file, the alerts, the dashboard and
// the templates of proxies.
package trial
