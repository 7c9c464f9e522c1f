// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

/// What a frame may call, create, destroy and write; driven alike on this chain and on anvil.
contract Child {
    uint256 public kept;
    address public immutable maker;

    error Refused(uint256 got, bytes why);

    constructor(uint256 value) payable {
        if (value == 13) revert Refused(value, "unlucky");
        kept = value;
        maker = msg.sender;
    }

    function keep(uint256 value) external payable returns (uint256) {
        kept = value;
        return address(this).balance;
    }

    function refuse(uint256 value) external payable {
        kept = value;
        revert Refused(value, hex"0102");
    }

    function destroy(address payable heir) external {
        selfdestruct(heir);
    }

    receive() external payable {}
}

contract Scenarios {
    uint256 public number;
    mapping(uint256 => uint256) public table;
    uint256[] public list;
    Child public child;

    event Kept(uint256 indexed key, address indexed who, bytes data);
    event Plain(uint256 value);

    error Custom(uint256 expected, uint256 got, string text);

    constructor() payable {
        number = 7;
    }

    function set(uint256 key, uint256 value) external payable {
        table[key] = value;
    }

    function setAndReset(uint256 key, uint256 first, uint256 second) external {
        table[key] = first;
        table[key] = second;
    }

    function clear(uint256 from, uint256 count) external {
        for (uint256 i = 0; i < count; i++) delete table[from + i];
    }

    function fill(uint256 from, uint256 count) external {
        for (uint256 i = 0; i < count; i++) table[from + i] = i + 1;
    }

    function push(uint256 value) external returns (uint256) {
        list.push(value);
        return list.length;
    }

    function emitLogs(uint256 count) external {
        for (uint256 i = 0; i < count; i++) {
            emit Kept(i, msg.sender, abi.encode(i, count));
            emit Plain(i);
            assembly {
                log0(0, i)
                log4(0, 3, i, 2, 3, 4)
            }
        }
    }

    function failWithReason(string calldata reason) external {
        number = 99;
        revert(reason);
    }

    function failWithCustom() external payable {
        number = 99;
        emit Plain(1);
        revert Custom(1, 2, "three");
    }

    function failWithPanic(uint256 a, uint256 b, uint256 kind) external returns (uint256) {
        number = 99;
        if (kind == 0) return a - b;
        if (kind == 1) return a / b;
        if (kind == 2) return list[a];
        assert(a == b);
        return 0;
    }

    function spin() external {
        for (uint256 i = 0; ; i++) table[i & 3] = i;
    }

    function invalid() external {
        number = 98;
        assembly {
            invalid()
        }
    }

    function make(uint256 value, uint256 money) external returns (address) {
        child = new Child{value: money}(value);
        return address(child);
    }

    function make2(uint256 value, bytes32 salt) external returns (address) {
        child = new Child{salt: salt}(value);
        return address(child);
    }

    function tryMake2Twice(bytes32 salt) external returns (address first, bool isSecond) {
        first = address(new Child{salt: salt}(1));
        try this.make2(1, salt) returns (address) {
            isSecond = true;
        } catch {}
    }

    function tryMake(uint256 value) external returns (bytes memory why) {
        try new Child(value) returns (Child made) {
            child = made;
        } catch (bytes memory reason) {
            why = reason;
        }
    }

    function catchRefusal(uint256 value) external payable returns (bytes memory why) {
        table[1] = value;
        try child.refuse{value: msg.value}(value) {
            table[1] = 0;
        } catch (bytes memory reason) {
            why = reason;
            emit Kept(value, address(child), reason);
        }
    }

    function nested(uint256 depth) external returns (uint256) {
        table[depth] = depth + 1;
        emit Plain(depth);
        if (depth == 0) revert("bottom");
        if (depth == 3) {
            try this.nested(depth - 1) returns (uint256 found) {
                return found;
            } catch Error(string memory) {
                return 1_000;
            }
        }
        return 1 + this.nested(depth - 1);
    }

    function pass(uint256 value, uint256 money, uint256 gasLimit) external payable returns (uint256) {
        return child.keep{value: money, gas: gasLimit}(value);
    }

    function send(address payable to, uint256 money) external returns (bool isDone) {
        isDone = to.send(money);
    }

    function delegate(address to, bytes calldata data) external payable returns (bool isDone, bytes memory output) {
        (isDone, output) = to.delegatecall(data);
    }

    function callcode(address to, bytes calldata data) external payable returns (bool isDone, bytes memory output) {
        bytes memory input = data;
        assembly {
            isDone := callcode(gas(), to, callvalue(), add(input, 32), mload(input), 0, 0)
            output := mload(0x40)
            mstore(output, returndatasize())
            returndatacopy(add(output, 32), 0, returndatasize())
            mstore(0x40, add(add(output, 64), returndatasize()))
        }
    }

    function staticCall(address to, bytes calldata data) external returns (bool isDone, bytes memory output) {
        (isDone, output) = to.staticcall(data);
        emit Kept(output.length, to, output);
    }

    function plainCall(address to, bytes calldata data) external payable returns (bool isDone, bytes memory output) {
        (isDone, output) = to.call{value: msg.value}(data);
    }

    function transient(uint256 key, uint256 value) external returns (uint256 before, uint256 later) {
        assembly {
            before := tload(key)
            tstore(key, value)
        }
        try this.transientThenFail(key) {} catch {}
        assembly {
            later := tload(key)
            sstore(200, later)
        }
    }

    function transientThenFail(uint256 key) external {
        assembly {
            tstore(key, 12345)
        }
        revert();
    }

    function destroyFresh(address payable heir, uint256 money) external {
        Child fresh = new Child{value: money}(3);
        fresh.destroy(heir);
        table[2] = address(fresh).code.length;
        fresh.keep(4);
    }

    function destroyIntoItself(uint256 money) external {
        Child fresh = new Child{value: money}(3);
        fresh.destroy(payable(address(fresh)));
        payable(address(fresh)).transfer(1);
    }

    function destroyOld(address payable heir) external {
        child.destroy(heir);
    }

    function look(address who) external returns (uint256 size, bytes32 hash, uint256 money, bytes32 head) {
        assembly {
            size := extcodesize(who)
            hash := extcodehash(who)
            money := balance(who)
            extcodecopy(who, 0, 0, 32)
            head := mload(0)
            mcopy(mload(0x40), 0, 0x20)
            sstore(201, xor(hash, xor(size, money)))
        }
    }

    function deep(uint256 levels) external returns (uint256) {
        if (levels == 0) return gasleft() > 0 ? 1 : 0;
        (bool isDone, bytes memory output) = address(this).call(abi.encodeCall(this.deep, (levels - 1)));
        return isDone ? abi.decode(output, (uint256)) + 1 : 0;
    }

    function probe(address to, uint256 money, uint256 gasLimit) external returns (bool isDone) {
        assembly {
            isDone := call(gasLimit, to, money, 0, 0, 0, 0)
            sstore(202, isDone)
        }
    }

    receive() external payable {
        emit Plain(msg.value);
    }
}
