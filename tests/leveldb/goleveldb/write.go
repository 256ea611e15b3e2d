// Writes a LevelDB by goleveldb, as a Go mailserver does: write FOLDER [WRITE-BUFFER-BYTES [TABLE-BYTES]].
//
// On standard input: `put KEY VALUE`, `delete KEY`, `compact`, `reopen`, each on a line of its own, bytes in hex. At the
// end the database is left as a process leaves it that is killed.
package main

import (
	"bufio"
	"encoding/hex"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/syndtr/goleveldb/leveldb/util"
)

func main() {
	options := &opt.Options{}
	for at, into := range []*int{&options.WriteBuffer, &options.CompactionTableSize} {
		if len(os.Args) > 2+at {
			*into = must(strconv.Atoi(os.Args[2+at]))
		}
	}
	db := must(leveldb.OpenFile(os.Args[1], options))
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "put":
			check(db.Put(bytes(words[1]), bytes(words[2]), nil))
		case "delete":
			check(db.Delete(bytes(words[1]), nil))
		case "compact":
			check(db.CompactRange(util.Range{}))
		case "reopen":
			check(db.Close())
			db = must(leveldb.OpenFile(os.Args[1], options))
		default:
			log.Fatalf("unknown: %s", words[0])
		}
	}
	check(lines.Err())
}

func bytes(text string) []byte {
	return must(hex.DecodeString(text))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
