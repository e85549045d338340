import { isObject } from '../../../core/system/json-object.ts'

/*
 * Anthropic's tools that clients run. Clients only send a type, because Anthropic's servers know the parameters. Here
 * each tool becomes a function, and each tool of a set becomes one too.
 *
 * Parameters are written as a list of names: `?` marks optional ones, `=a|b` lists the values, and `:key` names another
 * entry of PARAMETERS.
 */

type Fields = Record<string, unknown>

/** A function, and for a tool of a set the names that its calls have. */
export interface ClientFunction {
  function: { name: string; description: string; parameters: Fields }
  /** The fields of a `tool_use` block that names the function, if its name is another one there. */
  called?: { name: string; toolset_name: string }
}

const text = (description: string) => ({ type: 'string', description })
const number = (description: string) => ({ type: 'number', description })
const texts = (description: string) => ({ type: 'array', items: { type: 'string' }, description })
const numbers = (count: number, description: string) => ({
  ...{ type: 'array', items: { type: 'integer' }, minItems: count, maxItems: count },
  description
})
const target = (type: string, fields: Fields) => ({
  type: 'object',
  properties: { type: { const: type }, ...fields },
  required: ['type', ...Object.keys(fields)]
})
const POINT = target('coordinate', { x: number('Pixels from the left'), y: number('Pixels from the top') })
const ELEMENT = target('ref', { ref: text('Reference of an element, from read_page or find') })

const PARAMETERS: Record<string, Fields> = {
  command: text('The command to run'),
  restart: { type: 'boolean', description: 'true restarts the shell instead of running a command' },
  path: text('Path of the file or directory'),
  file_text: text('With "create": the whole text of the file'),
  old_str: text('With "str_replace": the text to replace, which must occur exactly once'),
  new_str: text('With "str_replace": the new text'),
  'new_str:inserted': text('With "str_replace" and "insert": the new text'),
  insert_line: { type: 'integer', description: 'With "insert": the line after which to insert. 0 is the start' },
  insert_text: text('With "insert": the text to insert'),
  view_range: numbers(2, 'With "view": the first and last line to show. -1 is the end of the file'),
  old_path: text('With "rename": the present path'),
  new_path: text('With "rename": the new path'),
  coordinate: numbers(2, 'Position [x, y] in pixels from the top left corner'),
  start_coordinate: numbers(2, 'Position [x, y] at which a drag starts'),
  region: numbers(4, 'Corners [x0, y0, x1, y1] of the part to show at full resolution'),
  text: text('The text to type, or the keys to press or hold, such as "Return" or "ctrl+s"'),
  'text:script': text('The JavaScript to run'),
  modifiers: text('Keys to hold during the action, such as "ctrl+shift"'),
  duration: number('Seconds'),
  repeat: number('How often to press'),
  scroll_amount: number('Steps of the wheel'),
  tab_id: text('The tab, if it is not the active one'),
  url: text('The address'),
  query: text('What to look for'),
  target: { anyOf: [POINT, ELEMENT] },
  'target:point': POINT,
  'target:element': ELEMENT,
  from: POINT,
  value: { type: ['string', 'number', 'boolean'], description: 'The value to set' },
  paths: texts('Paths of files'),
  document_ids: texts('Ids of files that the client holds'),
  depth: number('Levels of the page to show'),
  ref: text('Reference of the element to begin at')
}

const DIRECTION = 'scroll_direction=up|down|left|right'
const CLICKS = 'left_click right_click middle_click double_click triple_click'
const ACTIONS = 'key|type|mouse_move|left_click|left_click_drag|right_click|middle_click|double_click|screenshot'
const MORE_ACTIONS = `${ACTIONS}|cursor_position|left_mouse_down|left_mouse_up|scroll|hold_key|wait|triple_click`
const MORE_INPUT = `coordinate? text? start_coordinate? duration? scroll_amount? ${DIRECTION}?`
const EDITING = 'file_text? old_str? insert_line? view_range?'
const SCREEN = 'Uses the screen, mouse and keyboard of a computer.'

const TOOLS: [type: RegExp, name: string, description: string, parameters: string][] = [
  [/^bash_/, 'bash', 'Runs a command in a shell that stays open between calls.', 'command? restart?'],
  [
    /^text_editor_(2024|20250124)/,
    'str_replace_editor',
    'Views, creates and edits text files.',
    `command=view|create|str_replace|insert|undo_edit path new_str:inserted? ${EDITING}`
  ],
  [
    /^text_editor_/,
    'str_replace_based_edit_tool',
    'Views, creates and edits text files.',
    `command=view|create|str_replace|insert path new_str? insert_text? ${EDITING}`
  ],
  [
    /^memory_/,
    'memory',
    'Reads and changes files in the directory /memories, which lasts longer than a conversation.',
    `command=view|create|str_replace|insert|delete|rename path? new_str? insert_text? ${EDITING} old_path? new_path?`
  ],
  [/^computer_2024/, 'computer', SCREEN, `action=${ACTIONS}|cursor_position coordinate? text?`],
  [/^computer_20250124/, 'computer', SCREEN, `action=${MORE_ACTIONS} ${MORE_INPUT}`],
  [/^computer_\d/, 'computer', SCREEN, `action=${MORE_ACTIONS}|zoom ${MORE_INPUT} region?`]
]

/** The tools of each set, by their parameters. */
const SETS: Record<string, Record<string, string>> = {
  computer: {
    '': 'cursor_position left_mouse_down left_mouse_up screenshot',
    'text repeat?': 'key',
    'text duration': 'hold_key',
    text: 'type',
    coordinate: 'mouse_move',
    'coordinate? text?': CLICKS,
    'start_coordinate coordinate text?': 'left_click_drag',
    [`${DIRECTION} scroll_amount coordinate? text?`]: 'scroll',
    duration: 'wait',
    region: 'zoom'
  },
  browser: {
    '': 'list_tabs new_tab',
    tab_id: 'switch_tab close_tab',
    'tab_id?': 'get_page_text read_console read_network screenshot',
    'url tab_id?': 'navigate',
    'depth? filter=all|interactive? ref? tab_id?': 'read_page',
    'query tab_id?': 'find',
    'target:element value tab_id?': 'form_input',
    'target:element paths? document_ids? tab_id?': 'file_upload',
    'target:element tab_id?': 'scroll_to',
    'region tab_id?': 'zoom',
    'target modifiers? tab_id?': CLICKS,
    'target tab_id?': 'hover',
    'from target:point tab_id?': 'left_click_drag',
    'target:point tab_id?': 'left_mouse_down left_mouse_up mouse_move',
    [`${DIRECTION} target:point scroll_amount? tab_id?`]: 'scroll',
    'text tab_id?': 'type',
    'text repeat? tab_id?': 'key',
    'text duration tab_id?': 'hold_key',
    'duration tab_id?': 'wait',
    'text:script tab_id?': 'javascript_exec'
  }
}

/** Tools of sets that are only offered if the request enables them. */
const OFF = new Set(['file_upload', 'javascript_exec'])

/** What tools of sets do, if their names do not say it. */
const MEANINGS: Record<string, string> = {
  cursor_position: 'Returns the position of the mouse',
  hold_key: 'Holds keys down for a time',
  hover: 'Moves the mouse onto something',
  zoom: 'Shows a part of the screen at full resolution',
  read_page: 'Returns the elements of the page, with references to them',
  get_page_text: 'Returns the text of the page',
  read_console: "Returns the messages of the page's console",
  read_network: "Returns the page's network requests",
  find: 'Finds elements by a description and returns references to them',
  form_input: 'Sets the value of a form element',
  file_upload: 'Chooses the files of a file input',
  javascript_exec: 'Runs JavaScript in the page'
}

/** Returns the functions for a tool that clients run, or undefined for any other tool. */
export function clientFunctions(tool: Fields): ClientFunction[] | undefined {
  const type = String(tool.type)
  const [, set] = /^(computer|browser)_toolset_/.exec(type) ?? []
  if (set) return setFunctions(set, isObject(tool.configs) ? tool.configs : {})
  const [, name, about, parameters] = TOOLS.find(([pattern]) => pattern.test(type)) ?? []
  if (!name) return undefined
  const { display_width_px: width, display_height_px: height } = tool
  const size = width && height ? ` The screen has ${width} × ${height} pixels.` : ''
  const given = tool.enable_zoom ? parameters! : parameters!.replace(/\|zoom| region\?/g, '')
  const own = typeof tool.name === 'string' && tool.name !== '' ? tool.name : name
  return [{ function: { name: own, description: about + size, parameters: schema(given) } }]
}

function setFunctions(set: string, configs: Fields): ClientFunction[] {
  return Object.entries(SETS[set]!).flatMap(([parameters, names]) =>
    names.split(' ').flatMap(name => {
      const config = configs[name]
      if (!((isObject(config) ? config.enabled : undefined) ?? !OFF.has(name))) return []
      const about = MEANINGS[name] ?? name.replaceAll('_', ' ')
      const description = `In the ${set}: ${about}.`
      const called = { name, toolset_name: set }
      return [{ function: { name: `${set}_${name}`, description, parameters: schema(parameters) }, called }]
    })
  )
}

function schema(parameters: string): Fields {
  const properties: Fields = {}
  const required: string[] = []
  for (const word of parameters.split(' ').filter(Boolean)) {
    const [, key, name, values, optional] = /^(([a-z_]+)(?::\w+)?)(?:=([\w|]+))?(\??)$/.exec(word)!
    properties[name!] = values ? { type: 'string', enum: values.split('|') } : PARAMETERS[key!]
    if (!optional) required.push(name!)
  }
  return { type: 'object', properties, required }
}
