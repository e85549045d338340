/** Serves a file of this many bytes from a separate process, so that the downloader's memory is measured alone. */
import { sampleBytes, sha256, startByteServer } from './byte-server.ts'

const bytes = sampleBytes(Number(process.argv[2]))
const server = await startByteServer({ '/file': bytes })
process.send!({ url: server.url, size: bytes.length, sha256: sha256(bytes) })
process.once('disconnect', () => process.exit())
