import type { IncomingMessage, ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import type { FaultKind, RateLimitForm } from './faults.ts'

type Headers = Record<string, string | number>

const compresses = (request: IncomingMessage) => /\bgzip\b/.test(String(request.headers['accept-encoding'] ?? ''))

/** Answers with JSON, compressed if the client accepts that. */
export function sendJson(
  request: IncomingMessage,
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Headers = {}
): void {
  sendText(request, response, status, JSON.stringify(body), 'application/json; charset=utf-8', headers)
}

export function sendText(
  request: IncomingMessage,
  response: ServerResponse,
  status: number,
  body: string | Buffer,
  type = 'text/plain; charset=utf-8',
  headers: Headers = {}
): void {
  const bytes = Buffer.from(body)
  if (compresses(request) && bytes.length > 0) {
    // As behind a CDN: compressed on the fly, in chunks and without a length.
    response.writeHead(status, {
      ...headers,
      'content-type': type,
      'content-encoding': 'gzip',
      vary: 'Accept-Encoding'
    })
    response.end(request.method === 'HEAD' ? undefined : gzipSync(bytes))
    return
  }
  response.writeHead(status, { ...headers, 'content-type': type, 'content-length': bytes.length })
  response.end(request.method === 'HEAD' ? undefined : bytes)
}

const PAGE =
  '<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>Please accept our terms of use</h1></body></html>'
const EXPIRED =
  '<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>'
const FORBIDDEN =
  '<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code><Message>This content is not available in your region</Message></Error>'

export function sendExpired(request: IncomingMessage, response: ServerResponse): void {
  sendText(request, response, 403, EXPIRED, 'application/xml')
}

function rateLimitHeaders(form: RateLimitForm, seconds: number): Headers {
  if (form === 'retry-after') return { 'retry-after': Math.ceil(seconds) }
  if (form === 'retry-after-fraction') return { 'retry-after': String(seconds) }
  if (form === 'retry-after-date') return { 'retry-after': new Date(Date.now() + seconds * 1000).toUTCString() }
  if (form === 'none') return {}
  return {
    ratelimit: `"api";r=0;t=${Math.ceil(seconds)}`,
    'ratelimit-policy': '"fixed window";"api";q=500;w=300'
  }
}

/** Serves faults that replace an answer, and returns true if there was one. Waits if the fault is a delay. */
export async function answeredByFault(
  request: IncomingMessage,
  response: ServerResponse,
  faults: FaultKind[]
): Promise<boolean> {
  for (const fault of faults) if (fault.kind === 'latency') await sleep(fault.milliseconds)
  for (const fault of faults) {
    switch (fault.kind) {
      case 'reset':
        request.socket.resetAndDestroy()
        return true
      case 'expired':
        sendExpired(request, response)
        return true
      case 'forbidden':
        sendText(request, response, 403, FORBIDDEN, 'application/xml')
        return true
      case 'rate-limit':
        sendJson(
          request,
          response,
          429,
          { error: 'We had to rate limit you. Please retry later.' },
          rateLimitHeaders(fault.form, fault.seconds)
        )
        return true
      case 'status':
        sendText(request, response, fault.status, fault.body ?? 'Internal Error', 'text/plain', fault.headers)
        return true
      case 'html':
        sendText(request, response, fault.status ?? 200, PAGE, 'text/html; charset=utf-8')
        return true
      case 'broken-json':
        sendText(request, response, 200, '{"id":"test/', 'application/json; charset=utf-8')
        return true
    }
  }
  return false
}
