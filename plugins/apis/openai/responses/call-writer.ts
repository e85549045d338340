import { callArguments } from '../../../../core/answers/call-arguments.ts'
import { FreeformInput } from '../freeform-tools.ts'
import { CLIENT_TOOLS } from './client-tools.ts'
import { newId } from './response-request.ts'
import type { CustomToolCall, FunctionCall, OutputItem } from './schemas.ts'
import type { OfferedTool } from './tools.ts'

type CallEvent = [type: string, fields: Record<string, unknown>]

/** Builds the item for a call whose arguments arrive in pieces, in the form of its type of tool. */
export interface CallWriter {
  item: OutputItem
  add(json: string): CallEvent[]
  end(): CallEvent[]
}

/** @param given the engine's id of the call */
export function openCall(
  { type, name, namespace }: Omit<OfferedTool, 'function'>,
  given: string | undefined
): CallWriter {
  const common = { status: 'in_progress', call_id: callId(given) } as const
  const named = { ...common, name, ...(namespace && { namespace }) }
  if (type === 'function') return functionCall({ type: 'function_call', id: newId('fc'), ...named, arguments: '' })
  if (type === 'custom') return customCall({ type: 'custom_tool_call', id: newId('ctc'), ...named, input: '' })
  const { item: itemType, prefix, toItem } = CLIENT_TOOLS[type]!
  const item = { type: itemType, id: newId(prefix), ...common, ...toItem({}) }
  let json = ''
  return {
    item,
    add(piece) {
      json += piece
      return []
    },
    end() {
      Object.assign(item, toItem(JSON.parse(callArguments(json))))
      return []
    }
  }
}

function functionCall(item: FunctionCall): CallWriter {
  const kind = 'response.function_call_arguments'
  return {
    item,
    add(delta) {
      item.arguments += delta
      return [[`${kind}.delta`, { delta }]]
    },
    end: () => [[`${kind}.done`, { name: item.name, arguments: item.arguments }]]
  }
}

function customCall(item: CustomToolCall): CallWriter {
  const kind = 'response.custom_tool_call_input'
  const input = new FreeformInput()
  const say = (delta: string): CallEvent[] => {
    item.input += delta
    return delta === '' ? [] : [[`${kind}.delta`, { delta }]]
  }
  return {
    item,
    add: json => say(input.add(json)),
    end: () => [...say(input.end()), [`${kind}.done`, { input: item.input }]]
  }
}

/** The model's own id is kept, because its template may require it. A random id of the engine gets OpenAI's format. */
function callId(given: string | undefined): string {
  if (!given) return newId('call')
  return /^[A-Za-z0-9]{32}$/.test(given) ? `call_${given}` : given
}
