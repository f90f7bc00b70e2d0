package server

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// gunzip decompresses one body after the other into the same buffer.
type gunzip struct {
	source bytes.Reader
	reader *gzip.Reader // nil before the first use
	out    []byte
}

// gunzip returns one that is not in use.
func (h *streamHandler) gunzip() *gunzip {
	if z, ok := h.gunzips.Get().(*gunzip); ok {
		return z
	}
	return new(gunzip)
}

// read decompresses body, good until the next call. It stops beyond most bytes: what
// it returns is then longer.
func (z *gunzip) read(body []byte, most int) ([]byte, error) {
	z.source.Reset(body)
	if err := z.reset(); err != nil {
		return nil, fmt.Errorf("read gzip header: %w", err)
	}
	z.out = z.out[:0]
	for len(z.out) <= most {
		if len(z.out) == cap(z.out) {
			z.out = append(z.out, make([]byte, max(4096, len(z.out)))...)[:len(z.out)]
		}
		n, err := z.reader.Read(z.out[len(z.out):min(cap(z.out), most+1)])
		z.out = z.out[:len(z.out)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
	}
	return z.out, nil
}

func (z *gunzip) reset() (err error) {
	if z.reader == nil {
		z.reader, err = gzip.NewReader(&z.source)
		return err
	}
	return z.reader.Reset(&z.source)
}
