import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  type Attributes,
  type Context,
  DiagLogLevel,
  diag,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  TraceFlags,
  trace
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { resourceFromAttributes } from '@opentelemetry/resources'
import { BatchSpanProcessor, TracerProvider } from '@opentelemetry/sdk-trace'
import type { FastifyBaseLogger, FastifyInstance, FastifyRequest } from 'fastify'
import type { Operation } from '../../../core/contracts/hooks.ts'
import type { RequestRecord } from '../../../core/http/request-record.ts'
import type { TraceParent } from '../../../core/http/trace-parent.ts'
import { version } from '../../../core/system/package-info.ts'

export type RequestSpans = ReturnType<typeof traceRequests>

interface TracingOptions {
  /** Address of the collector, without the path of the signal. */
  endpoint: string
  /** Share of requests without a caller's trace. */
  ratio: number
  log: Pick<FastifyBaseLogger, 'warn'>
}

/** How long a collector may take for the remaining spans at shutdown, in milliseconds. */
const CLOSE_GRACE_MS = 2000
/** Interval between log lines about a collector that does not accept spans, in milliseconds. */
const LOG_INTERVAL = 60_000
/** OpenTelemetry's names for operations. The others keep corral's names. */
const OPERATIONS: Partial<Record<Operation, string>> = { completion: 'text_completion' }

/**
 * Traces requests to models: one span for each request, with child spans for its phases. Spans are created from the
 * record of a finished request, so that tracing costs nothing while it runs.
 */
export function traceRequests(app: FastifyInstance, { endpoint, ratio, log }: TracingOptions) {
  logFailures(log)
  /** The ids of the next span, if they were already passed on to others. */
  let next: TraceParent | undefined
  const provider = new TracerProvider({
    resource: resourceFromAttributes({
      'service.name': process.env.OTEL_SERVICE_NAME || 'corral',
      'service.version': version
    }),
    idGenerator: {
      generateTraceId: () => next?.traceId ?? randomId(16),
      generateSpanId: () => next?.spanId ?? randomId(8)
    },
    spanProcessors: [
      new BatchSpanProcessor({ exporter: new OTLPTraceExporter({ url: `${endpoint.replace(/\/+$/, '')}/v1/traces` }) })
    ]
  })
  const tracer = provider.getTracer('corral', version)
  const parents = new WeakMap<RequestRecord, TraceParent | undefined>()

  app.addHook('onRequest', (request, _reply, done) => {
    const { record } = request
    const parent = record.trace
    const sampled = parent?.sampled ?? Math.random() < ratio
    parents.set(record, parent)
    record.trace = { traceId: parent?.traceId ?? randomId(16), spanId: randomId(8), sampled }
    done()
  })

  app.onRequestEnd(request => {
    const { record } = request
    // Requests that were refused before the hook have no span.
    if (!record.use || !record.trace?.sampled || !parents.has(record)) return
    const { began, ended, waitBegan, leased, loadDuration, firstPiece, failure } = record
    // The monotonic clock stops while the machine sleeps.
    const zero = Date.now() - performance.now()
    const at = (moment: number) => zero + moment
    const { operation, model } = record.use
    const kind = SpanKind.SERVER
    const attributes = attributesOf(request)
    next = record.trace
    const span = tracer.startSpan(
      `${OPERATIONS[operation] ?? operation} ${model}`,
      { kind, startTime: at(began), attributes },
      contextOf(parents.get(record))
    )
    next = undefined
    const context = trace.setSpan(ROOT_CONTEXT, span)
    const part = (name: string, from: number, to: number) => {
      tracer.startSpan(name, { startTime: at(from) }, context).end(at(Math.max(from, to)))
    }
    if (waitBegan !== undefined) {
      const until = leased ?? ended
      const loaded = Math.min(waitBegan + loadDuration, until)
      if (loadDuration > 0) part('load', waitBegan, loaded)
      part('wait', loaded, until)
    }
    if (leased !== undefined) part('engine', leased, Math.min(record.answered ?? ended, ended))
    if (firstPiece !== undefined) span.addEvent('first token', at(firstPiece))
    // Error messages may quote the request, but error codes do not.
    if (record.status >= 500) span.setStatus({ code: SpanStatusCode.ERROR, message: failure?.code ?? '' })
    span.end(at(ended))
  })

  return {
    async close(): Promise<void> {
      await Promise.race([provider.shutdown().catch(() => {}), sleep(CLOSE_GRACE_MS, undefined, { ref: false })])
    }
  }
}

function randomId(bytes: number): string {
  return randomBytes(bytes).toString('hex')
}

function contextOf(parent: TraceParent | undefined): Context {
  if (!parent) return ROOT_CONTEXT
  const { traceId, spanId } = parent
  return trace.setSpanContext(ROOT_CONTEXT, { traceId, spanId, traceFlags: TraceFlags.SAMPLED, isRemote: true })
}

/**
 * Attributes with the names of OpenTelemetry's conventions for GenAI and HTTP, without prompts, answers and addresses.
 */
function attributesOf({ record, caller, method, routeOptions, id }: FastifyRequest): Attributes {
  const { operation, model, surface } = record.use!
  const { tokens, status, failure } = record
  return {
    'gen_ai.operation.name': OPERATIONS[operation] ?? operation,
    'gen_ai.provider.name': 'corral',
    'gen_ai.request.model': model,
    'gen_ai.usage.input_tokens': tokens.prompt,
    'gen_ai.usage.cache_read.input_tokens': tokens.cached,
    'gen_ai.usage.output_tokens': tokens.completion,
    'http.request.method': method,
    'http.route': routeOptions.url ?? '',
    'http.response.status_code': status,
    'corral.surface': surface,
    'corral.request_id': id,
    ...(caller.name !== undefined && { 'corral.key': caller.name }),
    ...(failure && { 'error.type': failure.code })
  }
}

/** Logs failures of the collector at intervals. They do not affect requests. */
function logFailures(log: Pick<FastifyBaseLogger, 'warn'>): void {
  let last = Number.NEGATIVE_INFINITY
  const say = (message: string) => {
    const now = performance.now()
    if (now - last < LOG_INTERVAL) return
    last = now
    log.warn(`Traces cannot be sent (tracing.endpoint): ${message}`)
  }
  const nothing = () => {}
  diag.setLogger({ error: say, warn: say, info: nothing, debug: nothing, verbose: nothing }, DiagLogLevel.WARN)
}
