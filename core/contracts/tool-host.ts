import type { Caller } from './callers.ts'

/* Tools that corral itself runs for models. Servers of tools are configured by an admin: a request can only name them. */

/** A tool of a configured server. */
export interface HostTool {
  readonly server: string
  /** Its name at the server. */
  readonly name: string
  readonly description: string
  /** JSON schema of its arguments. */
  readonly parameters: Record<string, unknown>
  /** Whether the server says that it changes nothing. */
  readonly readOnly: boolean
  /** Whether a user must approve each call. */
  readonly asks: boolean
}

/** What a request wants to use of a server. */
export interface WantedTools {
  readonly server: string
  /** The only tools of the server; absent for all that the configuration allows. */
  readonly tools?: readonly string[] | undefined
  /** How the client names the server. */
  readonly label?: string
  /** The field of the request, for errors; absent if the model's settings ask for it: it is then left out if missing. */
  readonly param?: string
  accepts?(tool: HostTool): boolean
  /** Whether the client wants to approve calls of a tool that needs no approval here. */
  asks?(tool: HostTool): boolean
  /** The type of a hosted tool, such as `web_search`, that the configuration maps to the tool. */
  readonly hosted?: string
}

/** What a request says about tools that corral runs, in the words of its API. */
export interface ToolRequest {
  readonly wanted: readonly WantedTools[]
  /** Whether the client can approve calls. Other calls that need an approval are refused. */
  readonly approves?: boolean
  /** What the user has decided about calls of an earlier answer. These run first. */
  readonly decisions?: readonly ToolDecision[]
  /** Whether the first turn must call a tool. */
  readonly isDemanded?: boolean
  /** Maximum calls, if less than the configured ones. */
  readonly maxCalls?: number | undefined
}

export interface ToolDecision {
  /** The id of the approval. */
  readonly id: string
  readonly approve: boolean
  /** The field of the request, for errors. */
  readonly param: string
}

/** A call of a tool that corral runs. */
export interface HostedCall {
  readonly id: string
  readonly server: string
  readonly tool: string
  /** How the client names the server. */
  readonly label?: string | undefined
  /** The name that the model calls. */
  readonly name: string
  /** JSON text. */
  readonly arguments: string
  readonly hosted?: string | undefined
  /** The id of its approval, once a user has approved it. */
  readonly approval?: string | undefined
}

/** An image or another file of a result. Its type is what the server of tools says. */
export interface ResultFile {
  readonly name: string
  readonly type: string
  /** Base64. */
  readonly data: string
}

export interface ToolResult {
  readonly output: string
  readonly failed: boolean
  readonly files?: readonly ResultFile[]
}

/** What happened to tools during an answer, in its deltas. */
export type HostedEvent =
  | { readonly type: 'tools'; readonly label: string; readonly tools: readonly HostTool[] }
  /** It begins. */
  | { readonly type: 'call'; readonly call: HostedCall }
  | ({ readonly type: 'result'; readonly call: HostedCall } & ToolResult)
  /** The answer ends, and the next request says whether the call may run. */
  | { readonly type: 'approval'; readonly call: HostedCall }

export interface ToolCallRequest {
  readonly call: Pick<HostedCall, 'server' | 'tool' | 'arguments'>
  /** Whether a user has approved this call. */
  readonly approved: boolean
  readonly caller: Caller
  readonly requestId: string
  readonly signal: AbortSignal
}

/** The service that runs tools. */
export interface ToolHost {
  /** Maximum calls of tools during one answer. */
  readonly maxCalls: number
  /** The server with this address, if it is configured. */
  serverAt(address: string): string | undefined
  /** The tool that stands for a hosted tool of this type, such as `web_search`. */
  mapped(type: string): { server: string; tool: string } | undefined
  /**
   * Lists tools, and starts their servers if needed.
   * @throws CorralError `invalid_request` for a server that does not exist or that the caller may not use,
   * `tools_unavailable` if it does not answer
   */
  list(wanted: WantedTools, caller: Caller, signal: AbortSignal): Promise<HostTool[]>
  /** Runs a tool within the limits, and reports it. @throws the signal's reason. Other failures are results. */
  call(request: ToolCallRequest): Promise<ToolResult>
  /** Keeps a call until its user approves it. @returns the id of the approval */
  keep(owner: string, call: HostedCall): string
  isKept(owner: string, id: string): boolean
  /** Takes a kept call, once. Undefined if there is none (any more) of this owner. */
  take(owner: string, id: string): HostedCall | undefined
}

/** A call of a tool, for the audit log and metrics. */
export interface ToolCallEvent {
  readonly server: string
  readonly tool: string
  /** SHA-256 of the arguments in hex. */
  readonly digest: string
  readonly result: 'done' | 'failed' | 'refused' | 'cancelled'
  readonly milliseconds: number
  readonly caller: Caller
  readonly requestId: string
}

declare module './services.ts' {
  interface Services {
    /** Without a host if no server of tools is configured. */
    tools: { readonly host?: ToolHost }
  }
}

declare module './engines.ts' {
  interface Delta {
    /** What happened to tools that corral runs. */
    hosted?: HostedEvent
  }
}

declare module './hooks.ts' {
  interface PluginHooks {
    /** Runs before the model is asked again with the results of tools. It may refuse, as `request`. */
    again?(request: HookedRequest): Promise<void> | void
    /** Runs after a tool was called or refused. Not awaited; errors are logged. */
    toolCalled?(event: ToolCallEvent): Promise<void> | void
  }

  interface Hooks {
    /** Calls the hooks before another turn. @throws as `request` */
    again(request: HookedRequest): Promise<void>
    toolCalled(event: ToolCallEvent): void
  }
}
