package queue

import "encoding/binary"

// AppendBytes appends data behind its length. Decoder.Bytes reads it.
func AppendBytes[T string | []byte](b []byte, data T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(data))), data...)
}

// Decoder reads what AppendBytes and the append functions of encoding/binary wrote. After
// data that ends early, Bad stays true and all values are zero.
type Decoder struct {
	Rest []byte // not read yet
	Bad  bool
}

// Take returns the next n bytes.
func (d *Decoder) Take(n int) []byte {
	if d.Bad || n < 0 || n > len(d.Rest) {
		d.Bad = true
		return nil
	}
	taken := d.Rest[:n:n]
	d.Rest = d.Rest[n:]
	return taken
}

// Uvarint reads an unsigned number.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(d.Rest)
	d.skip(n)
	if d.Bad {
		return 0
	}
	return v
}

// Varint reads a signed number.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(d.Rest)
	d.skip(n)
	if d.Bad {
		return 0
	}
	return v
}

func (d *Decoder) skip(n int) {
	if n <= 0 {
		d.Bad = true
		return
	}
	d.Take(n)
}

// Bytes reads bytes behind their length.
func (d *Decoder) Bytes() []byte {
	n := d.Uvarint()
	if n > uint64(len(d.Rest)) {
		d.Bad = true
		return nil
	}
	return d.Take(int(n))
}
