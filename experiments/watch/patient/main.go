// Command patient is an HTTP server that never closes a connection first: the
// client keeps each port in TIME_WAIT, as a driver or a proxy with short
// upstream connections does.
package main

import (
	"bufio"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
)

const answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

func main() {
	listen := flag.String("listen", "127.0.0.1:8099", "address to serve on")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	for err == nil {
		var conn net.Conn
		if conn, err = listener.Accept(); err == nil {
			go serve(conn)
		}
	}
	slog.Error("stop", "error", err)
	os.Exit(1)
}

// serve answers until the client has closed.
func serve(conn net.Conn) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		request.Body.Close()
		if _, err := conn.Write([]byte(answer)); err != nil {
			return
		}
	}
}
