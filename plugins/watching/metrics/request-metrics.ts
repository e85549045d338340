import type { FastifyRequest } from 'fastify'
import type { Registry } from 'prom-client'
import type { Operation } from '../../../core/contracts/hooks.ts'
import type { RequestObserver, RequestRecord } from '../../../core/http/request-record.ts'
/*
 * In seconds or tokens. The buckets of `gen_ai_…` come from the OpenTelemetry conventions, extended at the ends: small
 * models need less than 10 ms per token, and waits include the loading of models.
 */
import BUCKETS from './buckets.json' with { type: 'json' }
import HELP from './help-texts.json' with { type: 'json' }
import { type LabelValues, seriesCounter, seriesHistogram } from './series.ts'

/** OpenTelemetry's names for operations. The others keep corral's names. */
const OPERATIONS: Partial<Record<Operation, string>> = { completion: 'text_completion' }

/** Converts milliseconds to seconds. Anything but a duration becomes 0, since it would spoil a sum for good. */
function seconds(milliseconds: number): number {
  return milliseconds > 0 ? milliseconds / 1000 : 0
}

/** Requests of the same kind share their series. */
interface Kind {
  surface: string
  operation: Operation
  model: string
  key: string
  status: number
  code: string
}

/** Counts requests when they end. @returns the observer, which never throws */
export function requestMetrics(registry: Registry, values: LabelValues): RequestObserver {
  const counter = (name: keyof typeof HELP) => seriesCounter(registry, name, HELP[name])
  const histogram = (name: keyof typeof BUCKETS) => seriesHistogram(registry, name, HELP[name], BUCKETS[name])
  const requests = counter('corral_requests_total')
  const tokens = counter('corral_tokens_total')
  const wait = histogram('corral_queue_wait_seconds')
  const overhead = histogram('corral_overhead_seconds')
  const duration = histogram('gen_ai_server_request_duration_seconds')
  const firstToken = histogram('gen_ai_server_time_to_first_token_seconds')
  const perToken = histogram('gen_ai_server_time_per_output_token_seconds')
  const usage = histogram('gen_ai_client_token_usage')

  function seriesOf({ surface, operation, model, key, status, code }: Kind) {
    const of = {
      gen_ai_operation_name: OPERATIONS[operation] ?? operation,
      gen_ai_provider_name: 'corral',
      gen_ai_request_model: model
    }
    return {
      requests: requests.with({ surface, model, key, status: `${status}`, code }),
      duration: duration.with({ ...of, error_type: code || (status >= 400 ? `${status}` : '') }),
      overhead: overhead.with({ surface }),
      wait: wait.with({ model }),
      firstToken: firstToken.with(of),
      perToken: perToken.with(of),
      input: usage.with({ ...of, gen_ai_token_type: 'input' }),
      output: usage.with({ ...of, gen_ai_token_type: 'output' }),
      tokensIn: tokens.with({ model, key, type: 'input' }),
      tokensCached: tokens.with({ model, key, type: 'cached' }),
      tokensOut: tokens.with({ model, key, type: 'output' })
    }
  }
  /** Series by kind. The labels limit their number. */
  const known = new Map<string, ReturnType<typeof seriesOf>>()

  function observeUse(record: RequestRecord, kind: Kind): void {
    const place = `${kind.surface} ${kind.operation} ${kind.model} ${kind.status} ${kind.code} ${kind.key}`
    const series = known.get(place) ?? seriesOf(kind)
    known.set(place, series)
    const { began, ended, waitBegan, leased, firstPiece, answered, status } = record
    const { prompt, cached, completion } = record.tokens
    series.requests.value++
    series.duration.observe(seconds(ended - began))
    series.overhead.observe(seconds(record.overhead))
    if (waitBegan !== undefined) series.wait.observe(seconds((leased ?? ended) - waitBegan))
    if (status < 400 && firstPiece !== undefined) {
      series.firstToken.observe(seconds(firstPiece - began))
      const after = (answered ?? ended) - firstPiece
      if (completion > 1) series.perToken.observe(seconds(after) / (completion - 1))
    }
    if (prompt > 0) series.input.observe(prompt)
    if (completion > 0) series.output.observe(completion)
    series.tokensIn.value += prompt
    series.tokensCached.value += cached
    series.tokensOut.value += completion
  }

  return (request: FastifyRequest) => {
    const { record, caller } = request
    const { use, status, failure } = record
    // The record only names existing models, so names invented by clients do not become labels.
    const model = use ? values.model(use.model) : ''
    const key = values.key(caller?.name ?? '', model)
    const surface = use?.surface ?? request.routeOptions.config?.plugin ?? ''
    const code = failure?.code ?? ''
    if (use) observeUse(record, { surface, operation: use.operation, model, key, status, code })
    else requests.with({ surface, model, key, status: `${status}`, code }).value++
  }
}
