package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// imageUser is the user in the image, who owns its data directory.
const imageUser = 65532

// writeImage writes an image that docker load and podman load take. It has the program, certificates of authorities and time zones,
// and no shell.
func (r release) writeImage(ctx context.Context, file, binary, arch string) error {
	entries, err := r.imageFiles(ctx, binary)
	if err != nil {
		return err
	}
	var plain bytes.Buffer
	if err := writeTar(&plain, r.time, entries); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(plain.Bytes())), nil })
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	if image, err = mutate.ConfigFile(image, r.imageConfig(image, arch)); err != nil {
		return err
	}
	tag, err := name.NewTag("localhost/spillway:" + r.version)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}

// imageFiles returns the root directory of the image.
func (r release) imageFiles(ctx context.Context, binary string) ([]entry, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	goRoot, err := output(ctx, r.root, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	zones, err := os.ReadFile(filepath.Join(goRoot, "lib", "time", "zoneinfo.zip"))
	if err != nil {
		return nil, err
	}
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return []entry{
		{name: "data/", mode: 0o750, owner: imageUser},
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "spillway:x:%d:\n", imageUser)},
		{name: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil, "spillway:x:%d:%d::/data:/\n", imageUser, imageUser)},
		{name: "etc/spillway/", mode: 0o755},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots.Bytes()},
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
		{name: "usr/bin/spillway", mode: 0o755, content: program},
		{name: "usr/share/", mode: 0o755},
		{name: "usr/share/zoneinfo.zip", mode: 0o644, content: zones},
	}, nil
}

// imageConfig says how the image runs: the configuration is mounted at /etc/spillway/spillway.yaml, records wait in the volume /data.
func (r release) imageConfig(image v1.Image, arch string) *v1.ConfigFile {
	file, err := image.ConfigFile()
	if err != nil {
		panic("bug: " + err.Error()) // made above
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: r.time}
	for i := range file.History {
		file.History[i].Created = v1.Time{Time: r.time}
	}
	file.Config = v1.Config{
		User:         fmt.Sprintf("%d:%d", imageUser, imageUser),
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Env:          []string{"PATH=/usr/bin", "ZONEINFO=/usr/share/zoneinfo.zip"},
		Entrypoint:   []string{"/usr/bin/spillway"},
		Cmd:          []string{"serve", "/etc/spillway/spillway.yaml"},
		Volumes:      map[string]struct{}{"/data": {}},
		WorkingDir:   "/data",
		StopSignal:   "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title": "spillway", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.revision": r.revision, "org.opencontainers.image.licenses": "Apache-2.0",
		},
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/usr/bin/spillway", "ready", "/etc/spillway/spillway.yaml"}, Interval: 10 * time.Second, Timeout: 5 * time.Second,
			StartPeriod: 30 * time.Second, Retries: 2,
		},
	}
	return file
}
