import type { FastifyInstance } from 'fastify'
import type { CoreConfig } from '../../../../core/config/core-schema.ts'
import type { Caller } from '../../../../core/contracts/callers.ts'
import type { ToolSection } from '../tool-settings.ts'

export interface BuiltInContext {
  /** For requests on behalf of callers. */
  app(): FastifyInstance
  limits: CoreConfig['limits']
  settings: Pick<ToolSection, 'embedding_model' | 'fetch_from'>
  /** Private addresses that the settings allow for pulls. */
  privateAddresses(): readonly string[]
}

export interface BuiltInCall {
  caller: Caller
  signal: AbortSignal
  /** Milliseconds until the call is cancelled. */
  timeout: number
}

// biome-ignore lint/suspicious/noExplicitAny: the schema of the tool describes it
export type Run = (given: any, call: BuiltInCall) => string | Promise<string>
