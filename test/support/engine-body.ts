import type { Readable } from 'node:stream'
import { type EngineBody, ResponseBody } from '../../core/system/response-body.ts'

/** Turns a stream into the body of an engine's answer. */
export function engineBody<Source extends Readable>(source: Source): Source & EngineBody {
  const body = new ResponseBody(source)
  source.on('data', chunk => body.push(Buffer.from(chunk)))
  source.on('end', () => body.end())
  source.on('error', error => body.fail(error))
  source.on('close', () => {
    if (!source.readableEnded) body.cancel()
  })
  return Object.assign(source, {
    consume: (take: Parameters<EngineBody['consume']>[0]) => body.consume(take),
    cancel: () => body.cancel()
  })
}
