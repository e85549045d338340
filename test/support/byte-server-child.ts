/** Serves a file of so many bytes from a process of its own, where the memory of the one that fetches is measured. */
import { sampleBytes, sha256, startByteServer } from './byte-server.ts'

const bytes = sampleBytes(Number(process.argv[2]))
const server = await startByteServer({ '/file': bytes })
process.send!({ url: server.url, size: bytes.length, sha256: sha256(bytes) })
process.once('disconnect', () => process.exit())
